// Where things lie in the shared buffers, from the Layout the host passes; no offset starts here.
// The counterpart of MoEView and AttentionView in csrc/include/asap/protocol.hpp.
#pragma once

#include "asap/geometry.hpp"
#include "kernel_operator.h"

namespace asap {

using namespace AscendC;

// GM_ADDR of the interface is a macro, which const and lists of members would tear apart.
using Address = __gm__ uint8_t*;

static_assert(sizeof(Layout) == 30 * sizeof(int64_t), "as many fields as asap_ray/layout.py has");
static_assert(kFlagBytes == 512 && kHeaderBytes == 64, "a flag has an L2 line, a header a line");

// Of a message and of a reply: byte offsets in the header, the same as asap::Header on the host.
constexpr int64_t kHeaderEpoch = 0;
constexpr int64_t kHeaderSequence = 8;
constexpr int64_t kHeaderLayer = 16;
constexpr int64_t kHeaderNumRows = 20;
constexpr int64_t kHeaderNumPairs = 24;
constexpr int64_t kHeaderReplyOffset = 28;

// One DMA atomic add acts on 32 bits, whose last is the sign: a word announces 31 peers.
constexpr int32_t kMaxBits = 31;

template <class T>
__aicore__ inline GlobalTensor<T> array(Address begin) {
  GlobalTensor<T> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(begin));
  return tensor;
}

template <class T>
__aicore__ inline Address address_of(const GlobalTensor<T>& tensor) {
  return (Address)tensor.GetPhyAddr();
}

// Address number `index` of a table in device memory.
__aicore__ inline Address address_at(Address table, int64_t index) {
  return reinterpret_cast<Address>(array<uint64_t>(table).GetValue(index));
}

// Places of MoE device e: first_place(e) .. first_place(e + 1) - 1. In each is one of its experts.
__aicore__ inline int64_t first_place(const Layout& layout, int64_t moe_device) {
  return moe_device * layout.num_places / layout.moe_devices;
}

// One message in a MoE device's buffer. Pairs are grouped by local expert.
struct Message {
  Address header;
  Address num_rows_E;  // int32 per local expert
  Address row_idx;     // int32 per pair, into `rows`
  Address weights;     // float per pair
  Address rows;
};

struct MoEView {
  const Layout& l;
  Address bytes;

  __aicore__ inline Address word(int64_t i, int64_t slot) const {
    return bytes + l.moe_bitmaps + (i * kNumSlots + slot) * kFlagBytes;
  }
  __aicore__ inline Message message(int64_t i, int64_t j, int64_t slot) const {
    Address region = bytes + l.moe_regions + (i * l.tp + j) * l.region_bytes;
    Address header = region + l.region_headers + slot * l.header_bytes;
    const int64_t pairs = slot * l.slot_pairs * 4;
    return {header, header + kHeaderBytes, region + l.region_row_idx + pairs,
            region + l.region_weights + pairs,
            region + l.region_rows + slot * l.slot_rows * l.row_bytes};
  }
};

struct AttentionView {
  const Layout& l;
  Address bytes;

  __aicore__ inline Address word(int64_t slot) const {
    return bytes + l.attention_bitmaps + slot * l.bitmap_words * kFlagBytes;
  }
  __aicore__ inline Address header(int64_t slot, int64_t moe_device) const {
    return bytes + l.attention_headers + (slot * l.moe_devices + moe_device) * kHeaderBytes;
  }
  __aicore__ inline Address results(int64_t slot) const {
    return bytes + l.attention_results + slot * l.slot_results * l.row_bytes;
  }
};

}  // namespace asap
