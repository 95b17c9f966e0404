// async-combine-send (3.2.2) on the vector cores of a MoE device; steps as in
// csrc/include/asap/protocol.hpp and csrc/host/moe_comm.cpp. Never waits for a peer.
#pragma once

#include "item.h"

namespace asap {

struct CombineSendCall {
  Address layout, item, results;
  Address attention_buffers;  // table of their addresses, (i, j) at i * tp + j
  Address epochs;             // uint64 per group
  Address status;
  int64_t moe_device, combine;
};

template <class T>
class CombineSend {
 public:
  __aicore__ inline explicit CombineSend(const CombineSendCall& call)
      : call_(call), l_(read_layout(call.layout)), item_{l_, call.item} {
    flags_.init(pipe_);
    mover_.init(pipe_);
    row_sum_.init(pipe_, static_cast<uint32_t>(l_.hidden));
    pipe_.InitBuffer(header_, kHeaderBytes);
    i_ = item_.head().GetValue(kItemGroup);
    slot_ = item_.head().GetValue(kItemSlot);
    epoch_ = get_uint64(item_.head(), kItemEpoch);
  }

  __aicore__ inline void run() {
    // Block 0 alone looks at the epoch, so that all decide alike.
    if (GetBlockIdx() == 0) {
      report(call_.status, peek<uint64_t>(call_.epochs + i_ * 8) == epoch_ ? kOk : kIdle);
    }
    meet();
    const bool alive = verdict(call_.status) == kOk;
    if (alive) write_results();
    mover_.finish();
    meet();  // payload before header
    if (alive) announce();
  }

 private:
  __aicore__ inline AttentionView attention(int64_t j) const {
    return {l_, address_at(call_.attention_buffers, i_ * l_.tp + j)};
  }

  // Step 1 of async-combine-send (3.2.2). Blocks take rows in turn.
  __aicore__ inline void write_results() {
    for (int64_t j = 0; j < l_.tp; ++j) {
      const RankPart part = item_.part(j);
      const Address to =
          attention(j).results(slot_) + part.head.GetValue(kPartReplyOffset) * l_.row_bytes;
      if (call_.combine == kReduced) {
        sum_rows(to, part);
      } else {
        copy_rows(to, part);
      }
    }
  }

  __aicore__ inline void sum_rows(Address to, const RankPart& part) {
    for (int64_t n = GetBlockIdx(); n < part.head.GetValue(kPartNumRows); n += GetBlockNum()) {
      row_sum_.sum(to + n * l_.row_bytes, call_.results, part.terms, n);
    }
  }

  __aicore__ inline void copy_rows(Address to, const RankPart& part) {
    const int64_t num_experts =
        first_place(l_, call_.moe_device + 1) - first_place(l_, call_.moe_device);
    int64_t pair = 0;
    for (int64_t x = 0; x < num_experts; ++x) {
      const int64_t first = part.first_row_E.GetValue(x);
      for (int64_t n = 0; n < part.num_rows_E.GetValue(x); ++n, ++pair) {
        if (pair % GetBlockNum() != GetBlockIdx()) continue;
        mover_.move(to + pair * l_.row_bytes, call_.results + (first + n) * l_.row_bytes,
                    l_.row_bytes);
      }
    }
  }

  // Blocks take ranks in turn; who sent no rows waits for no reply.
  __aicore__ inline void announce() {
    for (int64_t j = GetBlockIdx(); j < l_.tp; j += GetBlockNum()) {
      const RankPart part = item_.part(j);
      if (part.head.GetValue(kPartNumRows) == 0) continue;
      const Address header = attention(j).header(slot_, call_.moe_device);
      write_header(header, part);  // Step 2
      flags_.publish(header, epoch_, get_uint64(item_.head(), kItemSequence));
      flags_.announce_reply(attention(j), slot_, call_.moe_device);  // Steps 3 and 4
    }
  }

  // Step 2, all but what `publish` writes.
  __aicore__ inline void write_header(Address to, const RankPart& part) {
    const int32_t num_rows = part.head.GetValue(kPartNumRows);
    const int32_t num_pairs = part.head.GetValue(kPartNumPairs);
    const LocalTensor<int32_t> header = header_.Get<int32_t>();
    header.SetValue(0, item_.head().GetValue(kItemLayer));
    header.SetValue(1, call_.combine == kReduced ? num_rows : num_pairs);
    header.SetValue(2, num_pairs);
    header.SetValue(3, part.head.GetValue(kPartReplyOffset));
    order<HardEvent::S_MTE3>();
    DataCopyPad(array<int32_t>(to + kHeaderLayer), header, {1, 16, 0, 0, 0});
  }

  const CombineSendCall call_;
  const Layout l_;
  const Item item_;
  TPipe pipe_;
  Flags flags_;
  Mover mover_;
  RowSum<T> row_sum_;
  TBuf<TPosition::VECCALC> header_;
  int64_t i_;
  int64_t slot_;
  uint64_t epoch_;
};

}  // namespace asap
