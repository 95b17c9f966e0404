#include <pybind11/stl.h>

#include "ascend_parts.hpp"

namespace asap::ascend {
namespace {

void dispatch_send(AttentionComm& comm, std::int64_t slot, std::int64_t layer,
                   const py::buffer& hidden, const py::buffer& expert_ids,
                   const py::buffer& weights, double timeout_s) {
  const py::buffer_info hidden_SH = hidden.request();
  const py::buffer_info ids_SK = expert_ids.request();
  const py::buffer_info weights_SK = weights.request();
  const std::int64_t num_tokens = num_rows_of(hidden_SH);
  const std::int64_t top_k = comm.layout().top_k;
  const Routed routed{
      num_tokens,
      {rows_at(hidden_SH, "hidden", num_tokens, comm.layout().hidden, comm.row_type()), false},
      {values_of<std::int32_t>(ids_SK, "expert_ids", num_tokens, top_k), false},
      {values_of<float>(weights_SK, "weights", num_tokens, top_k), false}};
  const py::gil_scoped_release no_gil;
  comm.async_dispatch_send(slot, layer, routed, timeout_s);
}

void dispatch_send_on_die(AttentionComm& comm, std::int64_t slot, std::int64_t layer,
                          std::int64_t num_tokens, std::uintptr_t hidden, std::uintptr_t expert_ids,
                          std::uintptr_t weights, double timeout_s) {
  const auto array = [](std::uintptr_t at) { return Array{reinterpret_cast<void*>(at), true}; };
  const py::gil_scoped_release no_gil;
  comm.async_dispatch_send(
      slot, layer, {num_tokens, array(hidden), array(expert_ids), array(weights)}, timeout_s);
}

void combine_recv(AttentionComm& comm, std::int64_t slot, const py::buffer& out, double timeout_s) {
  const py::buffer_info out_SH = out.request(/*writable=*/true);
  void* rows = rows_at(out_SH, "out", comm.num_tokens(slot), comm.layout().hidden, comm.row_type());
  const py::gil_scoped_release no_gil;
  comm.async_combine_recv(slot, rows, false, timeout_s);
}

void combine_recv_on_die(AttentionComm& comm, std::int64_t slot, std::uintptr_t out,
                         double timeout_s) {
  const py::gil_scoped_release no_gil;
  comm.async_combine_recv(slot, reinterpret_cast<void*>(out), true, timeout_s);
}

}  // namespace

void bind_attention(py::module_& m) {
  py::class_<AttentionComm>(m, "AttentionComm")
      .def(py::init([](std::shared_ptr<Die> die, const Layout& layout, BufferPtr buffer,
                       std::vector<BufferPtr> moe_buffers,
                       const std::vector<std::int32_t>& expert_of_place, std::int64_t dp_group,
                       std::int64_t tp_rank, std::uint64_t epoch, const std::string& row_type,
                       const std::string& combine) {
             return std::make_unique<AttentionComm>(
                 std::move(die), layout, std::move(buffer), std::move(moe_buffers), expert_of_place,
                 RankId{dp_group, tp_rank, epoch}, row_type_named(row_type),
                 combine_named(combine));
           }),
           py::arg("die"), py::arg("layout"), py::arg("buffer"), py::arg("moe_buffers"),
           py::arg("expert_of_place"), py::arg("dp_group"), py::arg("tp_rank"), py::arg("epoch"),
           py::arg("row_type"), py::arg("combine"))
      .def("async_dispatch_send", &dispatch_send, py::arg("slot"), py::arg("layer"),
           py::arg("hidden"), py::arg("expert_ids"), py::arg("weights"), py::arg("timeout_s"))
      .def("async_dispatch_send_on_die", &dispatch_send_on_die, py::arg("slot"), py::arg("layer"),
           py::arg("num_tokens"), py::arg("hidden"), py::arg("expert_ids"), py::arg("weights"),
           py::arg("timeout_s"))
      .def("async_combine_recv", &combine_recv, py::arg("slot"), py::arg("out"),
           py::arg("timeout_s"))
      .def("async_combine_recv_on_die", &combine_recv_on_die, py::arg("slot"), py::arg("out"),
           py::arg("timeout_s"))
      .def("replace_device", &AttentionComm::replace_device, py::arg("moe_device"),
           py::arg("buffer"), py::call_guard<py::gil_scoped_release>())
      .def("be_patient", &AttentionComm::be_patient, py::arg("seconds"))
      .def_property_readonly("backpressure_s", &AttentionComm::backpressure_s)
      .def("abort", &AttentionComm::abort);
}

}  // namespace asap::ascend
