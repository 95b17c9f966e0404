// The names of the fields of Layout, and the checks before any pointer is formed from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "asap/errors.hpp"
#include "asap/geometry.hpp"

namespace asap {

struct LayoutField {
  const char* name;
  std::int64_t Layout::* value;
};

inline constexpr LayoutField kLayoutFields[] = {
    {"dp_groups", &Layout::dp_groups},
    {"tp", &Layout::tp},
    {"moe_devices", &Layout::moe_devices},
    {"num_layers", &Layout::num_layers},
    {"num_experts", &Layout::num_experts},
    {"num_places", &Layout::num_places},
    {"top_k", &Layout::top_k},
    {"hidden", &Layout::hidden},
    {"row_bytes", &Layout::row_bytes},
    {"max_local_experts", &Layout::max_local_experts},
    {"slot_rows", &Layout::slot_rows},
    {"slot_pairs", &Layout::slot_pairs},
    {"slot_results", &Layout::slot_results},
    {"moe_arrivals", &Layout::moe_arrivals},
    {"moe_credits", &Layout::moe_credits},
    {"moe_bitmaps", &Layout::moe_bitmaps},
    {"moe_regions", &Layout::moe_regions},
    {"region_bytes", &Layout::region_bytes},
    {"region_headers", &Layout::region_headers},
    {"header_bytes", &Layout::header_bytes},
    {"region_row_idx", &Layout::region_row_idx},
    {"region_weights", &Layout::region_weights},
    {"region_rows", &Layout::region_rows},
    {"moe_bytes", &Layout::moe_bytes},
    {"attention_replies", &Layout::attention_replies},
    {"attention_bitmaps", &Layout::attention_bitmaps},
    {"bitmap_words", &Layout::bitmap_words},
    {"attention_headers", &Layout::attention_headers},
    {"attention_results", &Layout::attention_results},
    {"attention_bytes", &Layout::attention_bytes},
};
static_assert(sizeof(Layout) == std::size(kLayoutFields) * sizeof(std::int64_t),
              "every field has a name");

// An area lies behind the one before it, is aligned, and ends before `end`.
inline void check_area(const char* name, std::int64_t begin, std::int64_t num_bytes,
                       std::int64_t alignment, std::int64_t end) {
  ASAP_CHECK(begin >= 0 && begin % alignment == 0, name, " at ", begin, ": not aligned to ",
             alignment);
  ASAP_CHECK(num_bytes >= 0 && num_bytes <= end - begin, name, " at ", begin, ": ", num_bytes,
             " bytes end behind ", end);
}

// Once per endpoint, before any pointer is formed: nothing the kernels touch lies outside a buffer.
inline void check_layout(const Layout& layout) {
  for (const auto& field : kLayoutFields) {
    ASAP_CHECK(layout.*field.value >= 0, field.name, "=", layout.*field.value, " is negative");
  }
  ASAP_CHECK(layout.tp >= 1 && layout.tp <= kWordBits, "tp=", layout.tp, ": not in 1..", kWordBits);
  ASAP_CHECK(layout.moe_devices >= 1 && layout.moe_devices <= layout.num_experts,
             "moe_devices=", layout.moe_devices, ": not in 1..num_experts=", layout.num_experts);
  ASAP_CHECK(layout.num_places >= layout.num_experts &&
                 layout.num_places <= layout.moe_devices * layout.max_local_experts,
             "num_places=", layout.num_places, ": not in num_experts=", layout.num_experts,
             "..moe_devices * max_local_experts=", layout.moe_devices * layout.max_local_experts);
  ASAP_CHECK(layout.bitmap_words * kWordBits >= layout.moe_devices,
             "bitmap_words=", layout.bitmap_words, ": too few for ", layout.moe_devices,
             " MoE devices");

  const auto flag = [&](const char* name, std::int64_t begin, std::int64_t count,
                        std::int64_t end) {
    check_area(name, begin, count * kFlagBytes, kFlagBytes, end);
  };
  flag("moe_arrivals", layout.moe_arrivals, 1, layout.moe_bitmaps);
  flag("moe_credits", layout.moe_credits, 1, layout.moe_bitmaps);
  flag("moe_bitmaps", layout.moe_bitmaps, layout.dp_groups * kNumSlots, layout.moe_regions);
  check_area("moe_regions", layout.moe_regions, layout.dp_groups * layout.tp * layout.region_bytes,
             kFlagBytes, layout.moe_bytes);

  const std::int64_t pairs_bytes = kNumSlots * layout.slot_pairs * 4;
  ASAP_CHECK(layout.header_bytes >= kHeaderBytes + 4 * layout.max_local_experts,
             "header_bytes=", layout.header_bytes, ": no room for ", layout.max_local_experts,
             " local experts");
  check_area("region_headers", layout.region_headers, kNumSlots * layout.header_bytes, kHeaderBytes,
             layout.region_row_idx);
  check_area("region_row_idx", layout.region_row_idx, pairs_bytes, kHeaderBytes,
             layout.region_weights);
  check_area("region_weights", layout.region_weights, pairs_bytes, kHeaderBytes,
             layout.region_rows);
  check_area("region_rows", layout.region_rows, kNumSlots * layout.slot_rows * layout.row_bytes,
             kHeaderBytes, layout.region_bytes);

  flag("attention_replies", layout.attention_replies, 1, layout.attention_bitmaps);
  flag("attention_bitmaps", layout.attention_bitmaps, kNumSlots * layout.bitmap_words,
       layout.attention_headers);
  check_area("attention_headers", layout.attention_headers,
             kNumSlots * layout.moe_devices * kHeaderBytes, kHeaderBytes, layout.attention_results);
  check_area("attention_results", layout.attention_results,
             kNumSlots * layout.slot_results * layout.row_bytes, kHeaderBytes,
             layout.attention_bytes);
}

// Places of MoE device e: first_place(e) .. first_place(e + 1) - 1. In each is one of its experts.
inline std::int64_t first_place(const Layout& layout, std::int64_t moe_device) {
  return moe_device * layout.num_places / layout.moe_devices;
}

}  // namespace asap
