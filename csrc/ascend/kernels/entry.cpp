// The kernels by the names under which the host loads them. A row type is that of the rows as they
// travel and are computed: 0 float32, 1 bfloat16, 2 float16, as asap::RowType on the host.
#include "combine_send.h"
#include "dispatch_recv.h"
#include "dispatch_send.h"
#include "last_reply.h"
#include "super_kernel_int8.h"

namespace asap {

enum RowType : int64_t { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2 };

// Run Kernel<T>(call) with the T of the row type.
template <template <class> class Kernel, class Call>
__aicore__ inline void run_as(int64_t row_type, const Call& call) {
  if (row_type == kFloat32) {
    Kernel<float>(call).run();
  } else if (row_type == kBfloat16) {
    Kernel<bfloat16_t>(call).run();
  } else {
    Kernel<half>(call).run();
  }
}

}  // namespace asap

extern "C" __global__ __aicore__ __vector__ void asap_plan(GM_ADDR layout, GM_ADDR placement,
                                                           GM_ADDR plan, GM_ADDR expert_ids,
                                                           GM_ADDR weights, GM_ADDR status,
                                                           int64_t num_tokens, int64_t layer,
                                                           int64_t sequence, int64_t combine) {
  asap::make_plan(
      {layout, placement, plan, expert_ids, weights, status, num_tokens, layer, sequence, combine});
}

extern "C" __global__ __aicore__ __vector__ void asap_dispatch_send(
    GM_ADDR layout, GM_ADDR plan, GM_ADDR hidden, GM_ADDR moe_buffers, GM_ADDR abort,
    GM_ADDR status, int64_t dp_group, int64_t tp_rank, int64_t slot, int64_t epoch, int64_t combine,
    int64_t timeout_cycles, int64_t devices, int64_t empty, int64_t clear) {
  asap::DispatchSend({layout, plan, hidden, moe_buffers, abort, status, dp_group, tp_rank, slot,
                      epoch, combine, timeout_cycles, devices, empty, clear})
      .run();
}

extern "C" __global__ __aicore__ __vector__ void asap_dispatch_recv(
    GM_ADDR layout, GM_ADDR buffer, GM_ADDR item, GM_ADDR epochs, GM_ADDR cursor, GM_ADDR abort,
    GM_ADDR status, int64_t moe_device, int64_t combine, int64_t timeout_cycles) {
  asap::DispatchRecv(
      {layout, buffer, item, epochs, cursor, abort, status, moe_device, combine, timeout_cycles})
      .run();
}

extern "C" __global__ __aicore__ __vector__ void asap_combine_send(
    GM_ADDR layout, GM_ADDR item, GM_ADDR results, GM_ADDR attention_buffers, GM_ADDR epochs,
    GM_ADDR status, int64_t moe_device, int64_t combine, int64_t row_type) {
  asap::run_as<asap::CombineSend>(
      row_type, asap::CombineSendCall{layout, item, results, attention_buffers, epochs, status,
                                      moe_device, combine});
}

extern "C" __global__ __aicore__ __vector__ void asap_combine_recv(
    GM_ADDR layout, GM_ADDR plan, GM_ADDR buffer, GM_ADDR out, GM_ADDR abort, GM_ADDR status,
    int64_t slot, int64_t epoch, int64_t combine, int64_t timeout_cycles, int64_t row_type) {
  asap::run_as<asap::CombineRecv>(
      row_type, asap::CombineRecvCall{layout, plan, buffer, out, abort, status, slot, epoch,
                                      combine, timeout_cycles});
}

extern "C" __global__ __aicore__ __vector__ void asap_take_last_reply(
    GM_ADDR layout, GM_ADDR plan, GM_ADDR buffer, GM_ADDR status, int64_t slot, int64_t epoch,
    int64_t combine, int64_t moe_device) {
  asap::take_last_reply({layout, plan, buffer, nullptr, nullptr, status, slot, epoch, combine, 0},
                        moe_device);
}

extern "C" __global__ __aicore__ __mix__(1, 1) void asap_super_kernel(
    GM_ADDR layout, GM_ADDR item, GM_ADDR results, GM_ADDR weights, GM_ADDR workspace,
    GM_ADDR system, GM_ADDR gate_up_tiling, GM_ADDR down_tiling, GM_ADDR status, int64_t moe_device,
    int64_t intermediate, int64_t row_type) {
  asap::run_as<asap::SuperKernel>(
      row_type,
      asap::SuperKernelCall{layout, item, results, weights, workspace, system, gate_up_tiling,
                            down_tiling, status, moe_device, intermediate});
}

extern "C" __global__ __aicore__ __mix__(1, 1) void asap_super_kernel_int8(
    GM_ADDR layout, GM_ADDR item, GM_ADDR results, GM_ADDR weights, GM_ADDR workspace,
    GM_ADDR system, GM_ADDR gate_up_tiling, GM_ADDR down_tiling, GM_ADDR status, int64_t moe_device,
    int64_t intermediate, int64_t row_type) {
  asap::run_as<asap::Int8SuperKernel>(
      row_type,
      asap::SuperKernelCall{layout, item, results, weights, workspace, system, gate_up_tiling,
                            down_tiling, status, moe_device, intermediate});
}
