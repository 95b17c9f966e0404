// Moving and summing rows of hidden states. Each function picks the widest vectors of the running
// CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace asap {

enum class RowType { float32, bfloat16, float16 };

inline constexpr std::int64_t element_bytes(RowType type) {
  return type == RowType::float32 ? 4 : 2;
}

// By its name in spec.py. Throws std::invalid_argument.
RowType row_type_of(std::string_view name);

// A matrix of rows, one behind the other.
struct Rows {
  std::byte* bytes;
  RowType type;
  std::int64_t hidden;

  std::int64_t row_bytes() const { return hidden * element_bytes(type); }
  std::byte* row(std::int64_t index) const { return bytes + index * row_bytes(); }
};

// One summand: weight * rows[row].
struct Term {
  std::int32_t row;
  float weight;
};

// Whether copied rows stay in the caches or go past them: many rows would not fit, and an ordinary
// store reads each line of the target before it overwrites it. Rows that are converted or summed on
// the way always stay: sending them past the caches measured slower (docs/log.md).
enum class Store { cached, streamed };

// From how many bytes on a copy goes past the caches (measured, docs/primitives.md): rows for a
// peer have to leave this core's caches anyway, rows for this device's own experts are read at
// once.
inline constexpr std::int64_t kStreamToPeer = 512 << 10;
inline constexpr std::int64_t kStreamToSelf = 4 << 20;

inline Store store_of(const Rows& rows, std::int64_t num_rows, std::int64_t stream_from) {
  return num_rows * rows.row_bytes() < stream_from ? Store::cached : Store::streamed;
}

// Whatever the store, a later release makes the rows visible.

// to[n] = from[idx[n]], converted (to nearest, ties to even) where the types differ.
void gather_rows(const Rows& to, const Rows& from, std::span<const std::int32_t> idx, Store store);

// to[n] = from[n] for the first `count` rows, converted likewise.
void copy_rows(const Rows& to, const Rows& from, std::int64_t count, Store store);

// to[n] = sum of terms[begin[n]] .. terms[begin[n + 1] - 1] in float32; no terms make a zero row.
void sum_rows(const Rows& to, const Rows& from, std::span<const std::int32_t> begin,
              std::span<const Term> terms);

}  // namespace asap
