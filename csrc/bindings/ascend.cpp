#include "ascend.hpp"

#include <pybind11/stl.h>

#include "../ascend/host/super_kernel.hpp"
#include "arrays.hpp"

namespace asap {
namespace {

using namespace ascend;
using BufferPtr = std::shared_ptr<ascend::SharedBuffer>;

std::int64_t element_bytes(ascend::RowType type) {
  return type == ascend::RowType::float32 ? 4 : 2;
}

ascend::RowType row_type_named(const std::string& name) {
  if (name == "float32") return ascend::RowType::float32;
  if (name == "bfloat16") return ascend::RowType::bfloat16;
  ASAP_CHECK(name == "float16", "row_type '", name, "'; known: float32, bfloat16, float16");
  return ascend::RowType::float16;
}

ascend::Combine combine_named(const std::string& name) {
  if (name == "reduced") return ascend::Combine::reduced;
  ASAP_CHECK(name == "per_expert", "combine '", name, "'; known: reduced, per_expert");
  return ascend::Combine::per_expert;
}

Reach reach_named(const std::string& name) {
  if (name == "server") return Reach::server;
  ASAP_CHECK(name == "supernode", "reach '", name, "'; known: server, supernode");
  return Reach::supernode;
}

// Rows of a caller: float32, or uint16 standing for the 16-bit type that travels.
void* rows_at(const py::buffer_info& array, const char* name, std::int64_t num_rows,
              std::int64_t hidden, ascend::RowType row_type) {
  check_shape(array, name, num_rows, hidden);
  const bool is_float32 = row_type == ascend::RowType::float32;
  ASAP_CHECK(is_float32 ? array.item_type_is_equivalent_to<float>()
                        : array.item_type_is_equivalent_to<std::uint16_t>(),
             name, " has elements of format '", array.format, "'; expected ",
             is_float32 ? "float32" : "uint16, which stands for the type that travels");
  return array.ptr;
}

void dispatch_send(ascend::AttentionComm& comm, std::int64_t slot, std::int64_t layer,
                   const py::buffer& hidden, const py::buffer& expert_ids,
                   const py::buffer& weights, double timeout_s) {
  const py::buffer_info hidden_SH = hidden.request();
  const py::buffer_info ids_SK = expert_ids.request();
  const py::buffer_info weights_SK = weights.request();
  const std::int64_t num_tokens = num_rows_of(hidden_SH);
  const std::int64_t top_k = comm.layout().top_k;
  const ascend::Routed routed{
      num_tokens,
      {rows_at(hidden_SH, "hidden", num_tokens, comm.layout().hidden, comm.row_type()), false},
      {values_of<std::int32_t>(ids_SK, "expert_ids", num_tokens, top_k), false},
      {values_of<float>(weights_SK, "weights", num_tokens, top_k), false}};
  const py::gil_scoped_release no_gil;
  comm.async_dispatch_send(slot, layer, routed, timeout_s);
}

void dispatch_send_on_die(ascend::AttentionComm& comm, std::int64_t slot, std::int64_t layer,
                          std::int64_t num_tokens, std::uintptr_t hidden, std::uintptr_t expert_ids,
                          std::uintptr_t weights, double timeout_s) {
  const auto array = [](std::uintptr_t at) { return Array{reinterpret_cast<void*>(at), true}; };
  const py::gil_scoped_release no_gil;
  comm.async_dispatch_send(
      slot, layer, {num_tokens, array(hidden), array(expert_ids), array(weights)}, timeout_s);
}

void combine_recv(ascend::AttentionComm& comm, std::int64_t slot, const py::buffer& out,
                  double timeout_s) {
  const py::buffer_info out_SH = out.request(/*writable=*/true);
  void* rows = rows_at(out_SH, "out", comm.num_tokens(slot), comm.layout().hidden, comm.row_type());
  const py::gil_scoped_release no_gil;
  comm.async_combine_recv(slot, rows, false, timeout_s);
}

void combine_recv_on_die(ascend::AttentionComm& comm, std::int64_t slot, std::uintptr_t out,
                         double timeout_s) {
  const py::gil_scoped_release no_gil;
  comm.async_combine_recv(slot, reinterpret_cast<void*>(out), true, timeout_s);
}

void combine_send(ascend::MoEComm& comm, const ascend::Item& item, const py::buffer& results) {
  const py::buffer_info results_RH = results.request();
  const void* rows =
      rows_at(results_RH, "results", item.num_rows, comm.layout().hidden, comm.row_type());
  const py::gil_scoped_release no_gil;
  comm.async_combine_send(item, {rows, false});
}

// The item's rows, copied from the die.
py::array item_rows(const ascend::Item& item) {
  const bool is_float32 = item.is_float32;
  const py::dtype dtype = is_float32 ? py::dtype::of<float>() : py::dtype::of<std::uint16_t>();
  py::array rows(dtype, {item.num_rows, item.row_bytes / (is_float32 ? 4 : 2)});
  item.bytes.get(rows.mutable_data(), item.num_rows * item.row_bytes, item.rows_begin);
  return rows;
}

py::array item_num_rows_E(const std::shared_ptr<ascend::Item>& item) {
  return py::array(py::dtype::of<std::int32_t>(), {std::ssize(item->num_rows_E)},
                   item->num_rows_E.data(), py::cast(item));
}

std::unique_ptr<SuperKernel> super_kernel(DiePtr die, const Layout& layout, std::int64_t moe_device,
                                          const std::string& row_type, const py::buffer& gate_up,
                                          const py::buffer& down) {
  const py::buffer_info gate_up_LEJH = gate_up.request();
  const py::buffer_info down_LEHI = down.request();
  ASAP_CHECK(gate_up_LEJH.ndim == 4 && down_LEHI.ndim == 4,
             "the weights must be [L, E, 2 I, H] and [L, E, H, I]");
  const auto& shape = down_LEHI.shape;
  ASAP_CHECK((gate_up_LEJH.shape ==
              std::vector<py::ssize_t>{shape[0], shape[1], 2 * shape[3], layout.hidden}) &&
                 shape[2] == layout.hidden,
             "the weights must be [L, E, 2 I, H] and [L, E, H, I] with H=", layout.hidden);
  const ascend::RowType type = row_type_named(row_type);
  ASAP_CHECK(
      gate_up_LEJH.itemsize == element_bytes(type) && down_LEHI.itemsize == element_bytes(type),
      "the weights must be of the type that rows travel in");
  const ExpertWeights weights{gate_up_LEJH.ptr, down_LEHI.ptr, shape[0], shape[1], shape[3]};
  return std::make_unique<SuperKernel>(std::move(die), layout, moe_device, type, weights);
}

void bind_memory(py::module_& m) {
  py::class_<Die, std::shared_ptr<Die>>(m, "Die")
      .def(py::init<const std::string&, const std::string&, int>(), py::arg("library"),
           py::arg("kernels"), py::arg("device"), py::call_guard<py::gil_scoped_release>())
      .def(
          "copy",
          [](const Die& die, std::uintptr_t to, std::uintptr_t from, std::size_t num_bytes) {
            die.enter();
            die.acl().copy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), num_bytes,
                           Copy::on_device);
          },
          py::arg("to"), py::arg("from_"), py::arg("num_bytes"))
      .def_property_readonly(
          "cores", [](const Die& die) { return std::pair(die.cores().vector, die.cores().cube); });
  py::class_<ascend::SharedBuffer, BufferPtr>(m, "SharedBuffer")
      .def_static(
          "create",
          [](std::shared_ptr<Die> die, std::int64_t num_bytes, const std::string& reach) {
            return ascend::SharedBuffer::create(std::move(die), num_bytes, reach_named(reach));
          },
          py::arg("die"), py::arg("num_bytes"), py::arg("reach") = "server",
          py::call_guard<py::gil_scoped_release>())
      .def_static(
          "open",
          [](std::shared_ptr<Die> die, const std::string& key, std::int64_t num_bytes) {
            return ascend::SharedBuffer::open(std::move(die), key, num_bytes);
          },
          py::arg("die"), py::arg("key"), py::arg("num_bytes"))
      .def_property_readonly("key",
                             [](const ascend::SharedBuffer& b) { return py::bytes(b.key()); })
      .def_property_readonly("address",
                             [](const ascend::SharedBuffer& b) {
                               return reinterpret_cast<std::uintptr_t>(b.address());
                             })
      .def_property_readonly("num_bytes", &ascend::SharedBuffer::num_bytes);
}

void bind_attention(py::module_& m) {
  py::class_<ascend::AttentionComm>(m, "AttentionComm")
      .def(py::init([](std::shared_ptr<Die> die, const Layout& layout, BufferPtr buffer,
                       std::vector<BufferPtr> moe_buffers, std::int64_t dp_group,
                       std::int64_t tp_rank, std::uint64_t epoch, const std::string& row_type,
                       const std::string& combine) {
             return std::make_unique<ascend::AttentionComm>(
                 std::move(die), layout, std::move(buffer), std::move(moe_buffers),
                 ascend::RankId{dp_group, tp_rank, epoch}, row_type_named(row_type),
                 combine_named(combine));
           }),
           py::arg("die"), py::arg("layout"), py::arg("buffer"), py::arg("moe_buffers"),
           py::arg("dp_group"), py::arg("tp_rank"), py::arg("epoch"), py::arg("row_type"),
           py::arg("combine"))
      .def("async_dispatch_send", &dispatch_send, py::arg("slot"), py::arg("layer"),
           py::arg("hidden"), py::arg("expert_ids"), py::arg("weights"), py::arg("timeout_s"))
      .def("async_dispatch_send_on_die", &dispatch_send_on_die, py::arg("slot"), py::arg("layer"),
           py::arg("num_tokens"), py::arg("hidden"), py::arg("expert_ids"), py::arg("weights"),
           py::arg("timeout_s"))
      .def("async_combine_recv", &combine_recv, py::arg("slot"), py::arg("out"),
           py::arg("timeout_s"))
      .def("async_combine_recv_on_die", &combine_recv_on_die, py::arg("slot"), py::arg("out"),
           py::arg("timeout_s"))
      .def_property_readonly("backpressure_s", &ascend::AttentionComm::backpressure_s)
      .def("abort", &ascend::AttentionComm::abort);
}

void bind_item(py::module_& m) {
  py::class_<ascend::Item, std::shared_ptr<ascend::Item>>(m, "Item")
      .def_readonly("dp_group", &ascend::Item::dp_group)
      .def_readonly("slot", &ascend::Item::slot)
      .def_readonly("layer", &ascend::Item::layer)
      .def_readonly("sequence", &ascend::Item::sequence)
      .def_readonly("num_rows", &ascend::Item::num_rows)
      .def_readonly("num_tokens", &ascend::Item::num_tokens)
      .def_readonly("found_s", &ascend::Item::found_s)
      .def_property_readonly(
          "rows_at",
          [](const ascend::Item& item) {
            return reinterpret_cast<std::uintptr_t>(item.bytes.address() + item.rows_begin);
          })
      .def_property_readonly("results_at",
                             [](const ascend::Item& item) {
                               return reinterpret_cast<std::uintptr_t>(item.results.address());
                             })
      .def("__len__", [](const ascend::Item& item) { return item.num_rows; })
      .def_property_readonly("num_rows_E", &item_num_rows_E)
      .def_property_readonly("rows", &item_rows);
}

void bind_moe(py::module_& m) {
  py::class_<ascend::MoEComm>(m, "MoEComm")
      .def(py::init([](std::shared_ptr<Die> die, const Layout& layout, BufferPtr buffer,
                       const std::vector<std::vector<BufferPtr>>& attention_buffers,
                       std::int64_t moe_device, const std::vector<std::uint64_t>& epochs,
                       const std::string& row_type, const std::string& combine) {
             return std::make_unique<ascend::MoEComm>(
                 std::move(die), layout, std::move(buffer), attention_buffers, moe_device, epochs,
                 row_type_named(row_type), combine_named(combine));
           }),
           py::arg("die"), py::arg("layout"), py::arg("buffer"), py::arg("attention_buffers"),
           py::arg("moe_device"), py::arg("epochs"), py::arg("row_type"), py::arg("combine"))
      .def("async_dispatch_recv", &ascend::MoEComm::async_dispatch_recv, py::arg("timeout_s"),
           py::call_guard<py::gil_scoped_release>())
      .def("async_combine_send", &combine_send, py::arg("item"), py::arg("results"))
      .def(
          "async_combine_send_on_die",
          [](ascend::MoEComm& comm, const ascend::Item& item, std::uintptr_t results) {
            comm.async_combine_send(item, {reinterpret_cast<void*>(results), true});
          },
          py::arg("item"), py::arg("results"), py::call_guard<py::gil_scoped_release>())
      .def("set_epoch", &ascend::MoEComm::set_epoch, py::arg("dp_group"), py::arg("epoch"))
      .def("abort", &ascend::MoEComm::abort);
  py::class_<SuperKernel>(m, "SuperKernel")
      .def(py::init(&super_kernel), py::arg("die"), py::arg("layout"), py::arg("moe_device"),
           py::arg("row_type"), py::arg("gate_up"), py::arg("down"))
      .def(
          "run",
          [](const SuperKernel& kernel, const ascend::Item& item, std::uintptr_t results) {
            kernel.run(item, reinterpret_cast<void*>(results));
          },
          py::arg("item"), py::arg("results"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace

void bind_ascend(py::module_& m) {
  py::module_ ascend = m.def_submodule("ascend", "The primitives and the super kernel on Ascend.");
  bind_memory(ascend);
  bind_attention(ascend);
  bind_item(ascend);
  bind_moe(ascend);
  ascend.def(
      "num_devices",
      [](const std::string& library) {
        const Acl acl(library.c_str());
        acl.init();
        return acl.num_devices();
      },
      py::arg("library"));
  ascend.def(
      "private_memory",
      [](const Layout& layout, std::int64_t intermediate, std::int64_t element_bytes) {
        return std::map<std::string, std::int64_t>{
            {"plan_bytes", plan_bytes(layout)},
            {"item_bytes", item_bytes(layout)},
            {"item_rows", item_rows(layout)},
            {"workspace_bytes", workspace_bytes(intermediate, element_bytes)}};
      },
      py::arg("layout"), py::arg("intermediate"), py::arg("element_bytes"));
}

}  // namespace asap
