// One unit of work of a MoE device, in its private memory; the counterpart of asap::Item.
#pragma once

#include "plan.h"

namespace asap {

// Head of an item, int32 each.
constexpr int64_t kItemGroup = 0;
constexpr int64_t kItemSlot = 1;
constexpr int64_t kItemLayer = 2;
constexpr int64_t kItemNumRows = 3;   // R
constexpr int64_t kItemEpoch = 4;     // uint64
constexpr int64_t kItemSequence = 6;  // uint64

// Head of a rank's part, int32 each.
constexpr int64_t kPartNumRows = 0;
constexpr int64_t kPartNumPairs = 1;
constexpr int64_t kPartReplyOffset = 2;

// What one TP rank sent, and how its results go back.
struct RankPart {
  GlobalTensor<int32_t> head;
  GlobalTensor<int32_t> num_rows_E;   // pairs per local expert
  GlobalTensor<int32_t> first_row_E;  // position in the item's rows of the first of them
  GlobalTensor<int32_t> is_unsound;   // 1 + the pair whose row index is none, or 0
  GlobalTensor<int32_t> row_idx;      // per pair, into the rank's rows
  GlobalTensor<float> weights;        // per pair
  Terms terms;                        // per row of the rank
};

// The rows of all T ranks, grouped by local expert, then by rank.
struct Item {
  const Layout& l;
  Address bytes;

  __aicore__ inline GlobalTensor<int32_t> head() const { return array<int32_t>(bytes); }
  __aicore__ inline GlobalTensor<int32_t> num_rows_E() const {
    return array<int32_t>(bytes + kFlagBytes);
  }
  __aicore__ inline RankPart part(int64_t j) const {
    Carver carver(bytes + kFlagBytes + experts_bytes() + j * part_bytes());
    return carve(carver);
  }
  __aicore__ inline Address rows() const {
    return bytes + kFlagBytes + experts_bytes() + l.tp * part_bytes();
  }

  __aicore__ inline int64_t max_rows() const { return kNumSlots * l.slot_rows; }
  __aicore__ inline int64_t max_pairs() const { return kNumSlots * l.slot_pairs; }
  __aicore__ inline int64_t num_bytes() const {
    return rows() - bytes + l.tp * max_pairs() * l.row_bytes;
  }

 private:
  __aicore__ inline int64_t experts_bytes() const {
    Carver carver(bytes);
    carver.next<int32_t>(l.max_local_experts);
    return carver.num_bytes;
  }
  __aicore__ inline int64_t part_bytes() const {
    Carver carver(bytes);
    carve(carver);
    return carver.num_bytes;
  }
  __aicore__ inline RankPart carve(Carver& carver) const {
    return {carver.next<int32_t>(16),
            carver.next<int32_t>(l.max_local_experts),
            carver.next<int32_t>(l.max_local_experts),
            carver.next<int32_t>(1),
            carver.next<int32_t>(max_pairs()),
            carver.next<float>(max_pairs()),
            {carver.next<int32_t>(max_rows() + 2), carver.next<int32_t>(max_pairs()),
             carver.next<float>(max_pairs())}};
  }
};

__aicore__ inline void set_uint64(const GlobalTensor<int32_t>& head, int64_t at, uint64_t value) {
  head.SetValue(at, static_cast<int32_t>(value));
  head.SetValue(at + 1, static_cast<int32_t>(value >> 32));
}

__aicore__ inline uint64_t get_uint64(const GlobalTensor<int32_t>& head, int64_t at) {
  return static_cast<uint32_t>(head.GetValue(at)) |
         static_cast<uint64_t>(static_cast<uint32_t>(head.GetValue(at + 1))) << 32;
}

// Set the terms of `part` from the rest of it: a counting sort of the pairs by row, as
// RankPart::set_terms on the host. Writes 1 + the first pair with a row index out of range instead.
__aicore__ inline void set_terms(const RankPart& part, int64_t num_experts) {
  const int64_t num_rows = part.head.GetValue(kPartNumRows);
  const int64_t num_pairs = part.head.GetValue(kPartNumPairs);
  const GlobalTensor<int32_t>& begin = part.terms.begin;
  for (int64_t n = 0; n < num_rows + 2; ++n) begin.SetValue(n, 0);
  part.is_unsound.SetValue(0, 0);
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    const int32_t row = part.row_idx.GetValue(pair);
    if (row < 0 || row >= num_rows) {
      part.is_unsound.SetValue(0, static_cast<int32_t>(pair + 1));
      return;
    }
    begin.SetValue(row + 2, begin.GetValue(row + 2) + 1);
  }
  for (int64_t n = 1; n < num_rows + 2; ++n) {
    begin.SetValue(n, begin.GetValue(n) + begin.GetValue(n - 1));
  }
  int64_t pair = 0;
  for (int64_t x = 0; x < num_experts; ++x) {
    const int32_t first = part.first_row_E.GetValue(x);
    for (int32_t n = 0; n < part.num_rows_E.GetValue(x); ++n, ++pair) {
      const int32_t row = part.row_idx.GetValue(pair);
      const int32_t term = begin.GetValue(row + 1);
      begin.SetValue(row + 1, term + 1);
      part.terms.rows.SetValue(term, first + n);
      part.terms.weights.SetValue(term, part.weights.GetValue(pair));
    }
  }
}

}  // namespace asap
