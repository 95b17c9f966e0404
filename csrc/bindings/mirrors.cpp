#include "mirrors.hpp"

#include <pybind11/stl.h>

#include "asap/mirror.hpp"

namespace asap {
namespace {

namespace py = pybind11;

using BufferPtr = std::shared_ptr<SharedBuffer>;
using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

// None, or the header and (offset, num_bytes) of each range.
py::object to_python(const std::optional<Parcel>& parcel) {
  if (!parcel) return py::none();
  Ranges ranges;
  for (const Range& range : parcel->ranges) ranges.emplace_back(range.offset, range.num_bytes);
  return py::make_tuple(py::bytes(parcel->header), ranges);
}

template <class Mirror>
std::pair<std::int64_t, std::int64_t> span(const Mirror& mirror) {
  return {mirror.span().offset, mirror.span().num_bytes};
}

template <class Mirror>
py::object take(Mirror& mirror, std::int64_t slot) {
  return to_python(mirror.take(slot));
}

void bind_senders(py::module_& m) {
  py::class_<MoEMirror>(m, "MoEMirror")
      .def(py::init<const Layout&, BufferPtr, std::int64_t, std::int64_t>(), py::arg("layout"),
           py::arg("buffer"), py::arg("dp_group"), py::arg("tp_rank"))
      .def("take", &take<MoEMirror>, py::arg("slot"))
      .def("credit", &MoEMirror::credit, py::arg("slot"))
      .def_property_readonly("span", &span<MoEMirror>)
      .def_property_readonly("bell", &MoEMirror::bell);
  py::class_<AttentionMirror>(m, "AttentionMirror")
      .def(py::init<const Layout&, BufferPtr, std::int64_t>(), py::arg("layout"), py::arg("buffer"),
           py::arg("moe_device"))
      .def("take", &take<AttentionMirror>, py::arg("slot"))
      .def_property_readonly("span", &span<AttentionMirror>)
      .def_property_readonly("bell", &AttentionMirror::bell);
}

void bind_receivers(py::module_& m) {
  py::class_<MoEInbox>(m, "MoEInbox")
      .def(py::init<const Layout&, BufferPtr>(), py::arg("layout"), py::arg("buffer"))
      .def("put", &MoEInbox::put, py::arg("dp_group"), py::arg("tp_rank"), py::arg("slot"),
           py::arg("header"))
      .def("is_read", &MoEInbox::is_read, py::arg("dp_group"), py::arg("tp_rank"), py::arg("slot"))
      .def_property_readonly("bell", &MoEInbox::bell);
  py::class_<AttentionInbox>(m, "AttentionInbox")
      .def(py::init<const Layout&, BufferPtr>(), py::arg("layout"), py::arg("buffer"))
      .def("put", &AttentionInbox::put, py::arg("slot"), py::arg("moe_device"), py::arg("header"));
}

}  // namespace

void bind_mirrors(py::module_& m) {
  bind_senders(m);
  bind_receivers(m);
  py::class_<Watch>(m, "Watch")
      .def(py::init<std::vector<Bell>>(), py::arg("bells"))
      .def("wait", &Watch::wait, py::arg("timeout_s"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace asap
