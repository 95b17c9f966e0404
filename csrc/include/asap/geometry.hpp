// The geometry of the shared buffers as asap_ray/layout.py computed it; see there for every field.
// Plain types only: host code and the kernels of csrc/ascend both include it.
#pragma once

#include <cstdint>

namespace asap {

inline constexpr std::int64_t kNumSlots = 2;
inline constexpr std::int64_t kFlagBytes = 512;
inline constexpr std::int64_t kHeaderBytes = 64;
inline constexpr std::int64_t kWordBits = 64;

struct Layout {
  std::int64_t dp_groups, tp, moe_devices, num_layers, num_experts, num_places, top_k;
  std::int64_t hidden, row_bytes, max_local_experts, slot_rows, slot_pairs, slot_results;

  std::int64_t moe_arrivals, moe_credits, moe_bitmaps, moe_regions;
  std::int64_t region_bytes, region_headers, header_bytes;
  std::int64_t region_row_idx, region_weights, region_rows, moe_bytes;

  std::int64_t attention_replies, attention_bitmaps, bitmap_words;
  std::int64_t attention_headers, attention_results, attention_bytes;
};

}  // namespace asap
