// async-dispatch-recv (3.2.1) on the vector cores of a MoE device; steps as in
// csrc/include/asap/protocol.hpp and csrc/host/moe_comm.cpp.
#pragma once

#include "item.h"

namespace asap {

struct DispatchRecvCall {
  Address layout, buffer, item;
  Address epochs;  // uint64 per group; the host may change them
  Address cursor;  // int32: where the next round starts
  Address abort, status;
  int64_t moe_device, combine, timeout_cycles;
};

class DispatchRecv {
 public:
  __aicore__ inline explicit DispatchRecv(const DispatchRecvCall& call)
      : call_(call), l_(read_layout(call.layout)), moe_{l_, call.buffer}, item_{l_, call.item} {
    flags_.init(pipe_);
    mover_.init(pipe_);
  }

  __aicore__ inline void run() {
    int32_t code = kOk;
    if (GetBlockIdx() == 0) code = begin();
    meet();
    if (verdict(call_.status) == kOk) receive();
    mover_.finish();
    // Blocks that follow have a status of their own, which says nothing new.
    if (GetBlockIdx() == 0 && code == kOk) finish();
  }

 private:
  // Steps 1 and 2, by block 0 alone. A message that is not sound is dropped here.
  __aicore__ inline int32_t begin() {
    const int32_t code = await_message();
    if (code != kOk) return code;
    const int32_t wrong = read_headers();
    if (wrong != 0) {
      flags_.give_credit(moe_, i_, slot_, all_bits());
      report(call_.status, kCorrupt, wrong - 1, static_cast<int32_t>(i_));
      return kCorrupt;
    }
    place_rows();
    report(call_.status, kOk);
    return kOk;
  }

  __aicore__ inline int32_t all_bits() const {
    return static_cast<int32_t>((static_cast<uint32_t>(1) << l_.tp) - 1);
  }

  // Step 1 of async-dispatch-recv (3.2.1). The clock runs only while a message is incomplete.
  __aicore__ inline int32_t await_message() {
    Patience patience(call_.abort, call_.timeout_cycles);
    bool was_idle = true;
    while (true) {
      if (find_complete()) return kOk;
      if (was_idle && incomplete_ != 0) patience.restart();
      was_idle = incomplete_ == 0;
      const int32_t code = patience.check();
      if (code == kOk) continue;
      const bool idle = code == kTimeout && was_idle;
      report(call_.status, idle ? kIdle : code, static_cast<int32_t>(place_), incomplete_);
      return idle ? kIdle : code;
    }
  }

  // Fair: the first after the last one. Leaves what is incomplete, if anything is.
  __aicore__ inline bool find_complete() {
    const int64_t count = l_.dp_groups * kNumSlots;
    const int64_t start = peek<int32_t>(call_.cursor);
    incomplete_ = 0;
    for (int64_t n = 0; n < count; ++n) {
      const int64_t place = (start + n) % count;
      i_ = place / kNumSlots;
      slot_ = place % kNumSlots;
      const int32_t bits = drop_stale(arrived(moe_, i_, slot_));
      if (bits == all_bits()) {
        array<int32_t>(call_.cursor).SetValue(0, static_cast<int32_t>((place + 1) % count));
        clean_cache(call_.cursor);
        return true;
      }
      if (bits == 0) continue;
      incomplete_ = all_bits() & ~bits;
      place_ = place;
    }
    return false;
  }

  // Clears the bits of dead incarnations, so that the living may use their rows, and of messages
  // older than another rank's (docs/verify.md, rule 5). Returns the others.
  __aicore__ inline int32_t drop_stale(int32_t bits) {
    const uint64_t epoch = peek<uint64_t>(call_.epochs + i_ * 8);
    int32_t fresh = 0;
    uint64_t newest = 0;
    for (int64_t j = 0; j < l_.tp; ++j) {
      if ((bits & 1 << j) == 0) continue;
      const Address header = moe_.message(i_, j, slot_).header;
      if (peek<uint64_t>(header + kHeaderEpoch) != epoch) continue;
      const uint64_t sequence = peek<uint64_t>(header + kHeaderSequence);
      if (sequence > newest) fresh = 0;
      if (sequence >= newest) fresh |= 1 << j;
      if (sequence > newest) newest = sequence;
    }
    if (fresh != bits) flags_.give_credit(moe_, i_, slot_, bits & ~fresh);
    return fresh;
  }

  // Step 2. Every value is copied first and checked after, so that a peer that writes out of turn
  // cannot change it in between. 0, or 1 + the rank whose header is not sound.
  __aicore__ inline int32_t read_headers() {
    const GlobalTensor<int32_t> head = item_.head();
    const Address first = moe_.message(i_, 0, slot_).header;
    const int32_t layer = peek<int32_t>(first + kHeaderLayer);
    const uint64_t sequence = peek<uint64_t>(first + kHeaderSequence);
    head.SetValue(kItemGroup, static_cast<int32_t>(i_));
    head.SetValue(kItemSlot, static_cast<int32_t>(slot_));
    head.SetValue(kItemLayer, layer);
    set_uint64(head, kItemEpoch, peek<uint64_t>(first + kHeaderEpoch));
    set_uint64(head, kItemSequence, sequence);
    if (layer < 0 || layer >= l_.num_layers) return 1;
    for (int64_t j = 0; j < l_.tp; ++j) {
      const Message message = moe_.message(i_, j, slot_);
      if (peek<int32_t>(message.header + kHeaderLayer) != layer ||
          peek<uint64_t>(message.header + kHeaderSequence) != sequence ||
          !read_header(message, item_.part(j))) {
        return static_cast<int32_t>(j + 1);
      }
    }
    return 0;
  }

  // Whether the counts of one rank fit the layout and each other.
  __aicore__ inline bool read_header(const Message& message, const RankPart& part) {
    const int64_t num_rows = peek<int32_t>(message.header + kHeaderNumRows);
    const int64_t num_pairs = peek<int32_t>(message.header + kHeaderNumPairs);
    const int64_t reply_offset = peek<int32_t>(message.header + kHeaderReplyOffset);
    part.head.SetValue(kPartNumRows, static_cast<int32_t>(num_rows));
    part.head.SetValue(kPartNumPairs, static_cast<int32_t>(num_pairs));
    part.head.SetValue(kPartReplyOffset, static_cast<int32_t>(reply_offset));
    const int64_t halves = slot_ == 0 ? kNumSlots : 1;  // a solo batch fills both (3.3.2)
    if (num_rows < 0 || num_rows > halves * l_.slot_rows) return false;
    if (num_pairs < num_rows || num_pairs > halves * l_.slot_pairs) return false;
    int64_t sum = 0;
    for (int64_t x = 0; x < num_local_experts(); ++x) {
      const int32_t count = peek<int32_t>(message.num_rows_E + x * 4);
      if (count < 0 || count > num_rows) return false;
      part.num_rows_E.SetValue(x, count);
      sum += count;
    }
    const int64_t num_replies = call_.combine == kReduced ? num_rows : num_pairs;
    return sum == num_pairs && reply_offset >= 0 &&
           reply_offset <= halves * l_.slot_results - num_replies;
  }

  __aicore__ inline int64_t num_local_experts() const {
    return first_place(l_, call_.moe_device + 1) - first_place(l_, call_.moe_device);
  }

  // Expert by expert, rank by rank: where each rank's rows start in the item.
  __aicore__ inline void place_rows() {
    int32_t next = 0;
    for (int64_t x = 0; x < num_local_experts(); ++x) {
      const int32_t first = next;
      for (int64_t j = 0; j < l_.tp; ++j) {
        const RankPart part = item_.part(j);
        part.first_row_E.SetValue(x, next);
        next += part.num_rows_E.GetValue(x);
      }
      item_.num_rows_E().SetValue(x, next - first);
    }
    item_.head().SetValue(kItemNumRows, next);
  }

  // The rest of step 2, and step 3, by all blocks.
  __aicore__ inline void receive() {
    i_ = item_.head().GetValue(kItemGroup);
    slot_ = item_.head().GetValue(kItemSlot);
    for (int64_t j = GetBlockIdx(); j < l_.tp; j += GetBlockNum()) {
      const Message message = moe_.message(i_, j, slot_);
      const RankPart part = item_.part(j);
      const int64_t num_bytes = part.head.GetValue(kPartNumPairs) * 4;
      mover_.move(address_of(part.row_idx), message.row_idx, num_bytes);
      mover_.move(address_of(part.weights), message.weights, num_bytes);
      PipeBarrier<PIPE_ALL>();  // copied before checked
      set_terms(part, num_local_experts());
      clean_cache(call_.item);
    }
    meet();
    if (unsound_rank() < 0) read_rows();
    meet();  // rows before credit
  }

  __aicore__ inline int64_t unsound_rank() const {
    for (int64_t j = 0; j < l_.tp; ++j) {
      if (peek<int32_t>(address_of(item_.part(j).is_unsound)) != 0) return j;
    }
    return -1;
  }

  // Step 3 of async-dispatch-recv (3.2.1). Blocks take pairs in turn.
  __aicore__ inline void read_rows() {
    for (int64_t j = 0; j < l_.tp; ++j) {
      const Address from = moe_.message(i_, j, slot_).rows;
      const RankPart part = item_.part(j);
      int64_t pair = 0;
      for (int64_t x = 0; x < num_local_experts(); ++x) {
        const int64_t first = part.first_row_E.GetValue(x);
        const int64_t count = part.num_rows_E.GetValue(x);
        for (int64_t n = 0; n < count; ++n, ++pair) {
          if (pair % GetBlockNum() != GetBlockIdx()) continue;
          mover_.move(item_.rows() + (first + n) * l_.row_bytes,
                      from + part.row_idx.GetValue(pair) * l_.row_bytes, l_.row_bytes);
        }
      }
    }
  }

  // Steps 4 and 5, by block 0 after all have met.
  __aicore__ inline void finish() {
    flags_.give_credit(moe_, i_, slot_, all_bits());
    const int64_t j = unsound_rank();
    if (j >= 0) report(call_.status, kCorrupt, static_cast<int32_t>(j), static_cast<int32_t>(i_));
  }

  const DispatchRecvCall call_;
  const Layout l_;
  const MoEView moe_;
  const Item item_;
  TPipe pipe_;
  Flags flags_;
  Mover mover_;
  int64_t i_ = 0;
  int64_t slot_ = 0;
  int64_t place_ = 0;
  int32_t incomplete_ = 0;
};

}  // namespace asap
