// How much private memory a kernel wants, and where its host looks into it. The kernels' own files
// are the truth (plan.h, item.h, super_kernel.h, super_kernel_int8.h); tests/ascend/test_toolkit.py
// compares.
#pragma once

#include <algorithm>
#include <cstdint>

#include "asap/geometry.hpp"

namespace asap::ascend {

// An area of a plan or an item begins at a line of its own.
constexpr std::int64_t area(std::int64_t count, std::int64_t element = 4) {
  return (count * element + kFlagBytes - 1) / kFlagBytes * kFlagBytes;
}

constexpr std::int64_t plan_bytes(const Layout& l) {
  const std::int64_t tokens = kNumSlots * l.slot_rows, pairs = tokens * l.top_k;
  return area(16) + area(l.moe_devices + 1) + area(l.num_places + 1) + 6 * area(pairs) +
         area(tokens + 1);
}

// Where each expert's places begin, then the places.
constexpr std::int64_t placement_bytes(const Layout& l) {
  return (l.num_experts + 1 + l.num_places) * 4;
}

// Head of an item, then rows per local expert, then what each rank sent, then the rows.
inline constexpr std::int64_t kItemNumRowsE = kFlagBytes;

// Of one rank; it begins with how many rows that rank sent.
constexpr std::int64_t part_bytes(const Layout& l) {
  const std::int64_t rows = kNumSlots * l.slot_rows, pairs = kNumSlots * l.slot_pairs;
  return area(16) + 2 * area(l.max_local_experts) + area(1) + 4 * area(pairs) + area(rows + 2);
}

constexpr std::int64_t item_part(const Layout& l, std::int64_t j) {
  return kFlagBytes + area(l.max_local_experts) + j * part_bytes(l);
}

constexpr std::int64_t item_rows(const Layout& l) { return item_part(l, l.tp); }

constexpr std::int64_t max_item_rows(const Layout& l) { return l.tp * kNumSlots * l.slot_pairs; }

constexpr std::int64_t item_bytes(const Layout& l) {
  return item_rows(l) + max_item_rows(l) * l.row_bytes;
}

// Rows that a block of a super kernel computes at once.
inline constexpr std::int64_t kTileRows = 128;

// Of each block of the super kernel.
constexpr std::int64_t workspace_bytes(std::int64_t intermediate, std::int64_t element) {
  return area(kTileRows * 2 * intermediate) + area(kTileRows * intermediate, element);
}

// The same in W8A8: rows in int8, and products.
constexpr std::int64_t int8_workspace_bytes(std::int64_t hidden, std::int64_t intermediate) {
  return area(kTileRows * std::max(hidden, intermediate), 1) +
         area(kTileRows * std::max(hidden, 2 * intermediate));
}

}  // namespace asap::ascend
