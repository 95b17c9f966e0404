#include <pybind11/stl.h>

#include <optional>

#include "../ascend/host/super_kernel.hpp"
#include "ascend_parts.hpp"

namespace asap::ascend {
namespace {

void combine_send(MoEComm& comm, const Item& item, const py::buffer& results) {
  const py::buffer_info results_RH = results.request();
  const void* rows =
      rows_at(results_RH, "results", item.num_rows, comm.layout().hidden, comm.row_type());
  const py::gil_scoped_release no_gil;
  comm.async_combine_send(item, {rows, false});
}

// The item's rows, copied from the die.
py::array item_rows(const Item& item) {
  const bool is_float32 = item.is_float32;
  const py::dtype dtype = is_float32 ? py::dtype::of<float>() : py::dtype::of<std::uint16_t>();
  py::array rows(dtype, {item.num_rows, item.row_bytes / (is_float32 ? 4 : 2)});
  item.bytes.get(rows.mutable_data(), item.num_rows * item.row_bytes, item.rows_begin);
  return rows;
}

py::array item_num_rows_E(const std::shared_ptr<Item>& item) {
  return py::array(py::dtype::of<std::int32_t>(), {std::ssize(item->num_rows_E)},
                   item->num_rows_E.data(), py::cast(item));
}

// The weights' shape is that of down: [L, E, H, I].
void check_matrices(const py::buffer_info& gate_up, const py::buffer_info& down,
                    std::int64_t hidden) {
  const std::vector<py::ssize_t>& d = down.shape;
  ASAP_CHECK(gate_up.ndim == 4 && down.ndim == 4 && d[2] == hidden &&
                 (gate_up.shape == std::vector<py::ssize_t>{d[0], d[1], 2 * d[3], hidden}),
             "the weights must be [L, E, 2 I, H] and [L, E, H, I] with H=", hidden);
}

// A scale for each output, or null if there are none.
const void* scales_at(const std::optional<py::buffer>& scales, const char* name,
                      const std::vector<py::ssize_t>& matrices) {
  if (!scales) return nullptr;
  const py::buffer_info info = scales->request();
  ASAP_CHECK((info.shape == std::vector<py::ssize_t>{matrices[0], matrices[1], matrices[2]}) &&
                 info.item_type_is_equivalent_to<float>(),
             name, " must be float32, one for each output of each matrix");
  return info.ptr;
}

std::unique_ptr<SuperKernel> super_kernel(DiePtr die, const Layout& layout, std::int64_t moe_device,
                                          const std::string& row_type, const py::buffer& gate_up,
                                          const py::buffer& down,
                                          const std::optional<py::buffer>& gate_up_scale,
                                          const std::optional<py::buffer>& down_scale) {
  const py::buffer_info gate_up_LEJH = gate_up.request();
  const py::buffer_info down_LEHI = down.request();
  check_matrices(gate_up_LEJH, down_LEHI, layout.hidden);
  const auto& shape = down_LEHI.shape;
  const ExpertWeights weights{gate_up_LEJH.ptr,
                              down_LEHI.ptr,
                              scales_at(gate_up_scale, "gate_up_scale", gate_up_LEJH.shape),
                              scales_at(down_scale, "down_scale", shape),
                              shape[0],
                              shape[1],
                              shape[3]};
  ASAP_CHECK(gate_up_scale.has_value() == down_scale.has_value(),
             "both projections have scales, or none has");
  const RowType type = row_type_named(row_type);
  const std::int64_t element = weights.is_int8() ? 1 : element_bytes(type);
  ASAP_CHECK(gate_up_LEJH.itemsize == element && down_LEHI.itemsize == element,
             "the weights must be of the type that rows travel in, or int8 if they have scales");
  return std::make_unique<SuperKernel>(std::move(die), layout, moe_device, type, weights);
}

void bind_item(py::module_& m) {
  py::class_<Item, std::shared_ptr<Item>>(m, "Item")
      .def_readonly("dp_group", &Item::dp_group)
      .def_readonly("slot", &Item::slot)
      .def_readonly("layer", &Item::layer)
      .def_readonly("sequence", &Item::sequence)
      .def_readonly("num_rows", &Item::num_rows)
      .def_readonly("num_tokens", &Item::num_tokens)
      .def_readonly("found_s", &Item::found_s)
      .def_property_readonly(
          "rows_at",
          [](const Item& item) {
            return reinterpret_cast<std::uintptr_t>(item.bytes.address() + item.rows_begin);
          })
      .def_property_readonly(
          "results_at",
          [](const Item& item) { return reinterpret_cast<std::uintptr_t>(item.results.address()); })
      .def("__len__", [](const Item& item) { return item.num_rows; })
      .def_property_readonly("num_rows_E", &item_num_rows_E)
      .def_property_readonly("rows", &item_rows);
}

void bind_comm(py::module_& m) {
  py::class_<MoEComm>(m, "MoEComm")
      .def(py::init([](std::shared_ptr<Die> die, const Layout& layout, BufferPtr buffer,
                       const std::vector<std::vector<BufferPtr>>& attention_buffers,
                       std::int64_t moe_device, const std::vector<std::uint64_t>& epochs,
                       const std::string& row_type, const std::string& combine) {
             return std::make_unique<MoEComm>(std::move(die), layout, std::move(buffer),
                                              attention_buffers, moe_device, epochs,
                                              row_type_named(row_type), combine_named(combine));
           }),
           py::arg("die"), py::arg("layout"), py::arg("buffer"), py::arg("attention_buffers"),
           py::arg("moe_device"), py::arg("epochs"), py::arg("row_type"), py::arg("combine"))
      .def("async_dispatch_recv", &MoEComm::async_dispatch_recv, py::arg("timeout_s"),
           py::call_guard<py::gil_scoped_release>())
      .def("async_combine_send", &combine_send, py::arg("item"), py::arg("results"))
      .def(
          "async_combine_send_on_die",
          [](MoEComm& comm, const Item& item, std::uintptr_t results) {
            comm.async_combine_send(item, {reinterpret_cast<void*>(results), true});
          },
          py::arg("item"), py::arg("results"), py::call_guard<py::gil_scoped_release>())
      .def("replace_group", &MoEComm::replace_group, py::arg("dp_group"), py::arg("buffers"),
           py::arg("epoch"), py::call_guard<py::gil_scoped_release>())
      .def("abort", &MoEComm::abort);
}

void bind_super_kernel(py::module_& m) {
  py::class_<SuperKernel>(m, "SuperKernel")
      .def(py::init(&super_kernel), py::arg("die"), py::arg("layout"), py::arg("moe_device"),
           py::arg("row_type"), py::arg("gate_up"), py::arg("down"),
           py::arg("gate_up_scale") = py::none(), py::arg("down_scale") = py::none())
      .def(
          "run",
          [](const SuperKernel& kernel, const Item& item, std::uintptr_t results) {
            kernel.run(item, reinterpret_cast<void*>(results));
          },
          py::arg("item"), py::arg("results"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace

void bind_moe(py::module_& m) {
  bind_item(m);
  bind_comm(m);
  bind_super_kernel(m);
}

}  // namespace asap::ascend
