#include "ascend.hpp"

#include <pybind11/stl.h>

#include "../ascend/host/private_memory.hpp"
#include "ascend_parts.hpp"

namespace asap {
namespace ascend {

RowType row_type_named(const std::string& name) {
  if (name == "float32") return RowType::float32;
  if (name == "bfloat16") return RowType::bfloat16;
  ASAP_CHECK(name == "float16", "row_type '", name, "'; known: float32, bfloat16, float16");
  return RowType::float16;
}

Combine combine_named(const std::string& name) {
  if (name == "reduced") return Combine::reduced;
  ASAP_CHECK(name == "per_expert", "combine '", name, "'; known: reduced, per_expert");
  return Combine::per_expert;
}

void* rows_at(const py::buffer_info& array, const char* name, std::int64_t num_rows,
              std::int64_t hidden, RowType row_type) {
  check_shape(array, name, num_rows, hidden);
  const bool is_float32 = row_type == RowType::float32;
  ASAP_CHECK(is_float32 ? array.item_type_is_equivalent_to<float>()
                        : array.item_type_is_equivalent_to<std::uint16_t>(),
             name, " has elements of format '", array.format, "'; expected ",
             is_float32 ? "float32" : "uint16, which stands for the type that travels");
  return array.ptr;
}

namespace {

Reach reach_named(const std::string& name) {
  if (name == "server") return Reach::server;
  ASAP_CHECK(name == "supernode", "reach '", name, "'; known: server, supernode");
  return Reach::supernode;
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
  py::class_<SharedBuffer, BufferPtr>(m, "SharedBuffer")
      .def_static(
          "create",
          [](std::shared_ptr<Die> die, std::int64_t num_bytes, const std::string& reach) {
            return SharedBuffer::create(std::move(die), num_bytes, reach_named(reach));
          },
          py::arg("die"), py::arg("num_bytes"), py::arg("reach") = "server",
          py::call_guard<py::gil_scoped_release>())
      .def_static(
          "open",
          [](std::shared_ptr<Die> die, const std::string& key, std::int64_t num_bytes) {
            return SharedBuffer::open(std::move(die), key, num_bytes);
          },
          py::arg("die"), py::arg("key"), py::arg("num_bytes"))
      .def_property_readonly("key", [](const SharedBuffer& b) { return py::bytes(b.key()); })
      .def_property_readonly(
          "address",
          [](const SharedBuffer& b) { return reinterpret_cast<std::uintptr_t>(b.address()); })
      .def_property_readonly("num_bytes", &SharedBuffer::num_bytes);
}

void bind_sizes(py::module_& m) {
  m.def(
      "private_memory",
      [](const Layout& layout, std::int64_t intermediate, std::int64_t element_bytes) {
        return std::map<std::string, std::int64_t>{
            {"plan_bytes", plan_bytes(layout)},
            {"item_bytes", item_bytes(layout)},
            {"item_rows", item_rows(layout)},
            {"workspace_bytes", workspace_bytes(intermediate, element_bytes)},
            {"int8_workspace_bytes", int8_workspace_bytes(layout.hidden, intermediate)}};
      },
      py::arg("layout"), py::arg("intermediate"), py::arg("element_bytes"));
}

void bind_runtime(py::module_& m) {
  m.def(
      "num_devices",
      [](const std::string& library) {
        const Acl acl(library.c_str());
        acl.init();
        return acl.num_devices();
      },
      py::arg("library"));
}

}  // namespace
}  // namespace ascend

void bind_ascend(py::module_& m) {
  py::module_ submodule =
      m.def_submodule("ascend", "The primitives and the super kernel on Ascend.");
  ascend::bind_memory(submodule);
  ascend::bind_attention(submodule);
  ascend::bind_moe(submodule);
  ascend::bind_runtime(submodule);
  ascend::bind_sizes(submodule);
}

}  // namespace asap
