// asap_ray._native: this folder is the only C++ that knows Python. See asap_ray/_native.pyi for
// what it offers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cerrno>
#include <system_error>

#include "../ascend/host/acl.hpp"
#include "arrays.hpp"
#include "asap/attention_comm.hpp"
#include "asap/moe_comm.hpp"
#include "ascend.hpp"
#include "mirrors.hpp"
#include "stages.hpp"

namespace asap {
namespace {

void raise(const char* name, const std::exception& error) {
  py::set_error(py::module_::import("asap_ray.errors").attr(name), error.what());
}

void translate(std::exception_ptr pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Overflow& error) {
    raise("Overflow", error);
  } catch (const CorruptMessage& error) {
    raise("CorruptMessage", error);
  } catch (const PeerTimeout& error) {
    raise("PeerTimeout", error);
  } catch (const Closed& error) {
    raise("Closed", error);
  } catch (const ascend::AclError& error) {
    py::set_error(PyExc_OSError, error.what());
  } catch (const std::system_error& error) {
    py::set_error(PyExc_OSError, py::make_tuple(error.code().value(), error.what()));
  }
}

Layout layout_of(const py::kwargs& values) {
  Layout layout{};
  for (const auto& field : kLayoutFields) {
    ASAP_CHECK(values.contains(field.name), "Layout: field ", field.name, " is missing");
    layout.*field.value = values[field.name].cast<std::int64_t>();
  }
  ASAP_CHECK(values.size() == std::size(kLayoutFields), "Layout: ", values.size(), " values for ",
             std::size(kLayoutFields), " fields");
  return layout;
}

void dispatch_send(AttentionComm& comm, std::int64_t slot, std::int64_t layer,
                   const py::buffer& hidden, const py::buffer& expert_ids,
                   const py::buffer& weights, double timeout_s) {
  const py::buffer_info hidden_SH = hidden.request();
  const py::buffer_info ids_SK = expert_ids.request();
  const py::buffer_info weights_SK = weights.request();
  const Layout& layout = comm.layout();
  const std::int64_t num_tokens = num_rows_of(hidden_SH);
  const Rows rows = rows_of(hidden_SH, "hidden", num_tokens, layout.hidden, comm.row_type());
  const Choices choices{num_tokens,
                        values_of<std::int32_t>(ids_SK, "expert_ids", num_tokens, layout.top_k),
                        values_of<float>(weights_SK, "weights", num_tokens, layout.top_k)};
  const py::gil_scoped_release no_gil;
  comm.async_dispatch_send(slot, layer, rows, choices, timeout_s);
}

// Rows of each MoE device and pairs of each place, were this a message.
std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> route(
    const Layout& layout, const std::vector<std::int32_t>& expert_of_place,
    const py::buffer& expert_ids) {
  const py::buffer_info ids_SK = expert_ids.request();
  const std::int64_t num_tokens = num_rows_of(ids_SK);
  const auto* ids = values_of<std::int32_t>(ids_SK, "expert_ids", num_tokens, layout.top_k);
  const std::vector<float> weights(static_cast<std::size_t>(num_tokens * layout.top_k), 1.0f);
  check_layout(layout);
  const Placement placement = placement_of(layout, expert_of_place);
  Routing routing(layout, placement, Combine::reduced);
  routing.plan({num_tokens, ids, weights.data()});
  std::vector<std::int64_t> num_rows_E, num_pairs_P;
  for (std::int64_t e = 0; e < layout.moe_devices; ++e) {
    num_rows_E.push_back(std::ssize(routing.tokens(e)));
  }
  for (std::int64_t place = 0; place < layout.num_places; ++place) {
    num_pairs_P.push_back(routing.num_pairs_of_place(place));
  }
  return {num_rows_E, num_pairs_P};
}

void combine_recv(AttentionComm& comm, std::int64_t slot, const py::buffer& out, double timeout_s) {
  const py::buffer_info out_SH = out.request(/*writable=*/true);
  const Rows rows =
      rows_of(out_SH, "out", comm.num_tokens(slot), comm.layout().hidden, comm.row_type());
  const py::gil_scoped_release no_gil;
  comm.async_combine_recv(slot, rows, timeout_s);
}

std::shared_ptr<Item> dispatch_recv(MoEComm& comm, double timeout_s, const std::string& pick) {
  const py::gil_scoped_release no_gil;
  return comm.async_dispatch_recv(timeout_s, pick_of(pick));
}

void combine_send(MoEComm& comm, const Item& item, const py::buffer& results) {
  const py::buffer_info results_RH = results.request();
  const Rows rows =
      rows_of(results_RH, "results", item.num_rows, comm.layout().hidden, comm.types().travel);
  const py::gil_scoped_release no_gil;
  comm.async_combine_send(item, rows);
}

py::array item_rows(const std::shared_ptr<Item>& item) {
  const bool is_float32 = item->rows.type == RowType::float32;
  const py::dtype dtype = is_float32 ? py::dtype::of<float>() : py::dtype::of<std::uint16_t>();
  return py::array(dtype, {item->num_rows, item->rows.hidden}, item->rows.bytes, py::cast(item));
}

py::array item_num_rows_E(const std::shared_ptr<Item>& item) {
  return py::array(py::dtype::of<std::int32_t>(), {std::ssize(item->num_rows_E)},
                   item->num_rows_E.data(), py::cast(item));
}

using BufferPtr = std::shared_ptr<SharedBuffer>;

void bind_buffers(py::module_& m) {
  py::class_<Layout>(m, "Layout").def(py::init(&layout_of));
  py::class_<SharedBuffer, BufferPtr>(m, "SharedBuffer", py::buffer_protocol())
      .def_static("create", &SharedBuffer::create, py::arg("name"), py::arg("num_bytes"),
                  py::call_guard<py::gil_scoped_release>())
      .def_static("create_sparse", &SharedBuffer::create_sparse, py::arg("name"),
                  py::arg("num_bytes"), py::call_guard<py::gil_scoped_release>())
      .def_static("open", &SharedBuffer::open, py::arg("pid"), py::arg("fd"), py::arg("num_bytes"),
                  py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("pid", &SharedBuffer::pid)
      .def_property_readonly("fd", &SharedBuffer::fd)
      .def_property_readonly("num_bytes", &SharedBuffer::num_bytes)
      .def_property_readonly("address",
                             [](const SharedBuffer& buffer) {
                               return reinterpret_cast<std::uintptr_t>(buffer.bytes());
                             })
      .def_buffer([](SharedBuffer& buffer) {
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(buffer.bytes()), buffer.num_bytes());
      });
}

void bind_attention(py::module_& m) {
  py::class_<AttentionComm>(m, "AttentionComm")
      .def(py::init([](const Layout& layout, BufferPtr buffer, std::vector<BufferPtr> moe_buffers,
                       const std::vector<std::int32_t>& expert_of_place, std::int64_t dp_group,
                       std::int64_t tp_rank, std::uint64_t epoch, const std::string& row_type,
                       const std::string& combine) {
             return std::make_unique<AttentionComm>(
                 layout, std::move(buffer), std::move(moe_buffers), expert_of_place,
                 RankId{dp_group, tp_rank, epoch}, row_type_of(row_type), combine_of(combine));
           }),
           py::arg("layout"), py::arg("buffer"), py::arg("moe_buffers"), py::arg("expert_of_place"),
           py::arg("dp_group"), py::arg("tp_rank"), py::arg("epoch"), py::arg("row_type"),
           py::arg("combine"))
      .def("async_dispatch_send", &dispatch_send, py::arg("slot"), py::arg("layer"),
           py::arg("hidden"), py::arg("expert_ids"), py::arg("weights"), py::arg("timeout_s"))
      .def("async_combine_recv", &combine_recv, py::arg("slot"), py::arg("out"),
           py::arg("timeout_s"))
      .def("replace_device", &AttentionComm::replace_device, py::arg("moe_device"),
           py::arg("buffer"), py::call_guard<py::gil_scoped_release>())
      .def("be_patient", &AttentionComm::be_patient, py::arg("seconds"))
      .def_property_readonly("backpressure_s", &AttentionComm::backpressure_s)
      .def("abort", &AttentionComm::abort);
  m.def("route", &route, py::arg("layout"), py::arg("expert_of_place"), py::arg("expert_ids"));
}

void bind_moe(py::module_& m) {
  py::class_<Item, std::shared_ptr<Item>>(m, "Item")
      .def_readonly("dp_group", &Item::dp_group)
      .def_readonly("slot", &Item::slot)
      .def_readonly("layer", &Item::layer)
      .def_readonly("sequence", &Item::sequence)
      .def_readonly("found_s", &Item::found_s)
      .def_readonly("num_tokens", &Item::num_tokens)
      .def_readonly("num_rows", &Item::num_rows)
      .def_property_readonly("num_rows_E", &item_num_rows_E)
      .def_property_readonly("rows", &item_rows);
  py::class_<MoEComm>(m, "MoEComm")
      .def(py::init([](const Layout& layout, BufferPtr buffer,
                       const std::vector<MoEComm::Buffers>& attention_buffers,
                       std::int64_t moe_device, const std::vector<std::uint64_t>& epochs,
                       const std::string& row_type, const std::string& compute_type,
                       const std::string& combine) {
             return std::make_unique<MoEComm>(
                 layout, std::move(buffer), attention_buffers, moe_device, epochs,
                 RowTypes{row_type_of(row_type), row_type_of(compute_type)}, combine_of(combine));
           }),
           py::arg("layout"), py::arg("buffer"), py::arg("attention_buffers"),
           py::arg("moe_device"), py::arg("epochs"), py::arg("row_type"), py::arg("compute_type"),
           py::arg("combine"))
      .def("async_dispatch_recv", &dispatch_recv, py::arg("timeout_s"),
           py::arg("pick") = "round_robin")
      .def("async_combine_send", &combine_send, py::arg("item"), py::arg("results"))
      .def("replace_group", &MoEComm::replace_group, py::arg("dp_group"), py::arg("buffers"),
           py::arg("epoch"), py::call_guard<py::gil_scoped_release>())
      .def("abort", &MoEComm::abort);
}

}  // namespace
}  // namespace asap

PYBIND11_MODULE(_native, m) {
  m.doc() =
      "Shared buffers, the four asynchronous primitives (3.2) and passes over rows on the host.";
  py::register_exception_translator(&asap::translate);
  asap::bind_buffers(m);
  asap::bind_attention(m);
  asap::bind_moe(m);
  asap::bind_mirrors(m);
  asap::bind_stages(m);
  asap::bind_ascend(m);
}
