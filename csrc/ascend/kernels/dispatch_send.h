// async-dispatch-send (3.2.1) on the vector cores of an attention device; steps as in
// csrc/include/asap/protocol.hpp and csrc/host/attention_comm.cpp.
#pragma once

#include "plan.h"

namespace asap {

struct DispatchSendCall {
  Address layout, plan, hidden;
  Address moe_buffers;  // table of their addresses, in the order of e
  Address abort, status;
  int64_t dp_group, tp_rank, slot, epoch, combine, timeout_cycles;
  int64_t devices;  // mask of those that have not got this message yet
  int64_t empty;    // mask of those to which it says that there are no rows
  int64_t clear;    // mask of those where nothing of a dead incarnation lies
};

class DispatchSend {
 public:
  __aicore__ inline explicit DispatchSend(const DispatchSendCall& call)
      : call_(call), l_(read_layout(call.layout)), plan_(l_, call.plan) {
    flags_.init(pipe_);
    mover_.init(pipe_);
    pipe_.InitBuffer(header_, static_cast<uint32_t>(l_.header_bytes));
  }

  // Each block serves devices of its own, so blocks need not meet. After a timeout the call may be
  // made again for the devices that are left.
  __aicore__ inline void run() {
    const bool is_sound = plan_.head.GetValue(kPlanIsSound) != 0 || call_.devices == call_.empty;
    int32_t code = is_sound ? kOk : kInvalid;
    int32_t pending = 0;
    for (int64_t e = GetBlockIdx(); e < l_.moe_devices; e += GetBlockNum()) pending |= 1 << e;
    pending &= static_cast<int32_t>(call_.devices);
    const Patience patience(call_.abort, call_.timeout_cycles);
    while (pending != 0 && code == kOk) {
      pending &= ~serve_ready(pending);
      code = pending != 0 ? patience.check() : kOk;
    }
    mover_.finish();
    report(call_.status, code, static_cast<int32_t>(call_.slot), pending);
  }

 private:
  // Step 1 of async-dispatch-send (3.2.1). A solo message lies in both slots: before its first one
  // a rank waits until whatever a dead incarnation sent is out of either. From then on it knows
  // what it has sent itself.
  __aicore__ inline bool has_room(const MoEView& moe, int64_t e) const {
    const bool was_clear = (call_.clear & 1 << e) != 0;
    for (int64_t each = 0; each < kNumSlots; ++each) {
      if (was_clear && each != call_.slot) continue;
      if (!has_credit(moe, call_.dp_group, each, 1 << call_.tp_rank)) return false;
    }
    return true;
  }

  // The devices that had room; they do not wait for the others.
  __aicore__ inline int32_t serve_ready(int32_t pending) {
    int32_t served = 0;
    for (int64_t e = 0; e < l_.moe_devices; ++e) {
      if ((pending & 1 << e) == 0) continue;
      const MoEView moe{l_, address_at(call_.moe_buffers, e)};
      if (!has_room(moe, e)) continue;
      const Message message = moe.message(call_.dp_group, call_.tp_rank, call_.slot);
      const bool is_empty = (call_.empty & 1 << e) != 0;
      if (!is_empty) write_rows(message, e);
      write_header(message, e, is_empty);
      flags_.announce_message(moe, call_.dp_group, call_.tp_rank, call_.slot);  // Steps 4 and 5
      served |= 1 << e;
    }
    return served;
  }

  // Step 2 of async-dispatch-send (3.2.1).
  __aicore__ inline void write_rows(const Message& message, int64_t e) {
    const int64_t first = plan_.row_begin.GetValue(e);
    for (int64_t n = 0; n < plan_.num_rows(e); ++n) {
      const int64_t token = plan_.tokens.GetValue(first + n);
      mover_.move(message.rows + n * l_.row_bytes, call_.hidden + token * l_.row_bytes,
                  l_.row_bytes);
    }
    const int64_t pair = plan_.first_pair(e);
    const int64_t num_bytes = (plan_.first_pair(e + 1) - pair) * 4;
    mover_.move(message.row_idx, address_of(plan_.row_idx[pair]), num_bytes);
    mover_.move(message.weights, address_of(plan_.weights[pair]), num_bytes);
  }

  // Step 3.
  __aicore__ inline void write_header(const Message& message, int64_t e, bool is_empty) {
    const LocalTensor<int32_t> header = header_.Get<int32_t>();
    const uint32_t num_words = static_cast<uint32_t>(l_.header_bytes / 4);
    for (uint32_t n = 0; n < num_words; ++n) header.SetValue(n, 0);
    const uint64_t sequence = sequence_of(plan_);
    header.SetValue(kHeaderEpoch / 4, static_cast<int32_t>(call_.epoch));
    header.SetValue(kHeaderEpoch / 4 + 1, static_cast<int32_t>(call_.epoch >> 32));
    header.SetValue(kHeaderSequence / 4, static_cast<int32_t>(sequence));
    header.SetValue(kHeaderSequence / 4 + 1, static_cast<int32_t>(sequence >> 32));
    header.SetValue(kHeaderLayer / 4, plan_.head.GetValue(kPlanLayer));
    if (!is_empty) write_counts(header, e);
    order<HardEvent::S_MTE3>();
    DataCopyPad(array<int32_t>(message.header), header, {1, num_words * 4, 0, 0, 0});
  }

  __aicore__ inline void write_counts(const LocalTensor<int32_t>& header, int64_t e) {
    header.SetValue(kHeaderNumRows / 4, static_cast<int32_t>(plan_.num_rows(e)));
    header.SetValue(kHeaderNumPairs / 4,
                    static_cast<int32_t>(plan_.first_pair(e + 1) - plan_.first_pair(e)));
    header.SetValue(kHeaderReplyOffset / 4,
                    static_cast<int32_t>(plan_.reply_offset(e, call_.combine)));
    const int64_t first = first_place(l_, e);
    for (int64_t p = first; p < first_place(l_, e + 1); ++p) {
      header.SetValue(static_cast<uint32_t>(kHeaderBytes / 4 + p - first),
                      plan_.pair_begin.GetValue(p + 1) - plan_.pair_begin.GetValue(p));
    }
  }

  const DispatchSendCall call_;
  const Layout l_;
  const Plan plan_;
  TPipe pipe_;
  Flags flags_;
  Mover mover_;
  TBuf<TPosition::VECCALC> header_;
};

}  // namespace asap
