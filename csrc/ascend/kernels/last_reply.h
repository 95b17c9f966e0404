// What a rank does first when MoE device e has died (rule 2 of docs/verify.md): what the dead one
// had answered counts, and its bit must not be taken for the successor's. A reply that does not fit
// is asked for again. The counterpart of take_last_reply in csrc/host/device_restart.cpp.
#pragma once

#include "combine_recv.h"

namespace asap {

// One block. Reports the devices that still owe a reply.
__aicore__ inline void take_last_reply(const CombineRecvCall& call, int64_t moe_device) {
  TPipe pipe;
  Flags flags;
  flags.init(pipe);
  const Layout l = read_layout(call.layout);
  const Plan plan(l, call.plan);
  const AttentionView attention{l, call.buffer};
  int32_t owing = plan.head.GetValue(kPlanOwing);
  const bool is_there =
      flags.take_reply(attention, call.slot, moe_device, call.epoch, sequence_of(plan));
  if (is_there && fits(attention, plan, call, moe_device)) owing &= ~(1 << moe_device);
  plan.head.SetValue(kPlanOwing, owing);
  report(call.status, kOk, static_cast<int32_t>(call.slot), owing);
}

}  // namespace asap
