// async-combine-recv (3.2.2) on the vector cores of an attention device; steps as in
// csrc/include/asap/protocol.hpp and csrc/host/attention_comm.cpp.
#pragma once

#include "plan.h"

namespace asap {

struct CombineRecvCall {
  Address layout, plan, buffer, out, abort, status;
  int64_t slot, epoch, combine, timeout_cycles;
};

// Whether the header of a reply says what device e was sent.
__aicore__ inline bool fits(const AttentionView& attention, const Plan& plan,
                            const CombineRecvCall& call, int64_t e) {
  const Address header = attention.header(call.slot, e);
  return peek<int32_t>(header + kHeaderNumRows) == plan.num_replies(e, call.combine) &&
         peek<int32_t>(header + kHeaderLayer) == plan.head.GetValue(kPlanLayer);
}

template <class T>
class CombineRecv {
 public:
  __aicore__ inline explicit CombineRecv(const CombineRecvCall& call)
      : call_(call),
        l_(read_layout(call.layout)),
        plan_(l_, call.plan),
        attention_{l_, call.buffer} {
    flags_.init(pipe_);
    row_sum_.init(pipe_, static_cast<uint32_t>(l_.hidden));
  }

  __aicore__ inline void run() {
    if (GetBlockIdx() == 0) await_replies();
    meet();  // bits and headers before rows
    if (verdict(call_.status) == kOk) sum_rows();
    PipeBarrier<PIPE_ALL>();
  }

 private:
  // Steps 1 and 2 of async-combine-recv (3.2.2), by block 0 alone. What has come is remembered, so
  // that after a timeout the call may be made again.
  __aicore__ inline void await_replies() {
    const Patience patience(call_.abort, call_.timeout_cycles);
    const uint64_t sequence = sequence_of(plan_);
    int32_t owing = plan_.head.GetValue(kPlanOwing);
    int32_t code = kOk;
    int32_t value = 0;
    while (owing != 0 && code == kOk) {
      for (int64_t e = 0; e < l_.moe_devices && code == kOk; ++e) {
        if ((owing & 1 << e) == 0) continue;
        if (!flags_.take_reply(attention_, call_.slot, e, call_.epoch, sequence)) continue;
        owing &= ~(1 << e);
        if (!fits(attention_, plan_, call_, e)) {
          code = kCorrupt;
          value = static_cast<int32_t>(e);
        }
      }
      if (owing != 0 && code == kOk) code = patience.check();
    }
    plan_.head.SetValue(kPlanOwing, owing);
    report(call_.status, code, code == kCorrupt ? value : static_cast<int32_t>(call_.slot), owing);
  }

  // Step 3. Blocks take tokens in turn. No flag follows: the next message to the device, sent
  // after this, is the credit.
  __aicore__ inline void sum_rows() {
    const int64_t num_tokens = plan_.head.GetValue(kPlanNumTokens);
    for (int64_t n = GetBlockIdx(); n < num_tokens; n += GetBlockNum()) {
      row_sum_.sum(call_.out + n * l_.row_bytes, attention_.results(call_.slot), plan_.terms, n);
    }
  }

  const CombineRecvCall call_;
  const Layout l_;
  const Plan plan_;
  const AttentionView attention_;
  TPipe pipe_;
  Flags flags_;
  RowSum<T> row_sum_;
};

}  // namespace asap
