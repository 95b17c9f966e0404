// The inner loop of every float32 product: a tile of few rows by one panel, its sums in registers.
//
// Rows are read from blocks: as many rows as a tile has, sixteen inputs of each in turn. So one
// pointer serves all rows of the loop, and no two of them compete for one place in the cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#include "asap/products.hpp"
#include "row_kernels.hpp"

namespace asap {

template <int kLanes>
struct VectorOf {
  typedef float type __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
};

// Floats of a register, and rows whose sums leave registers for two vectors of the panel.
template <class Kernels>
struct TileShape {
  static constexpr int kLanes = 4;
  static constexpr int kRows = 6;
};
#if defined(__x86_64__)
template <>
struct TileShape<Avx2> {
  static constexpr int kLanes = 8;
  static constexpr int kRows = 6;
};
template <>
struct TileShape<Avx512> {
  static constexpr int kLanes = 16;
  static constexpr int kRows = 14;
};
#endif

inline constexpr std::int64_t padded(std::int64_t num_inputs) {
  return num_panels(num_inputs, kHalfPanel) * kHalfPanel;
}

// Memory that starts at a line and is used again. Whoever takes more of it loses what was there,
// which is freed before; what is new has no value yet.
class Scratch {
 public:
  float* room_for(std::int64_t num_floats) {
    const auto num_lines =
        static_cast<std::size_t>(std::max<std::int64_t>(1, num_panels(num_floats, kHalfPanel)));
    if (num_lines_ < num_lines) {
      num_lines_ = 0;
      lines_.reset();
      lines_ = std::make_unique_for_overwrite<Line[]>(num_lines);
      num_lines_ = num_lines;
    }
    return lines_[0].values;
  }

 private:
  struct alignas(kLineBytes) Line {
    float values[kHalfPanel];
  };
  std::unique_ptr<Line[]> lines_;
  std::size_t num_lines_ = 0;
};

// Call `visit` with the height of a tile, a constant, that has room for `num_rows` and few more.
template <int kRows, class Visit>
[[gnu::always_inline]] inline void with_height(std::int64_t num_rows, Visit visit) {
  if constexpr (kRows > 2) {
    constexpr int kHalf = (kRows + 1) / 2;
    if (num_rows <= kHalf) return with_height<kHalf>(num_rows, visit);
  }
  visit(std::integral_constant<int, kRows>{});
}

// Where number `input` of row `row` is, in a block of `height` rows.
inline constexpr std::int64_t place_in_block(std::int64_t height, std::int64_t row,
                                             std::int64_t input) {
  return (input / kHalfPanel * height + row) * kHalfPanel + input % kHalfPanel;
}

// Copy rows into a block; its rows and inputs beyond them stay as they are, and count for nothing.
[[gnu::always_inline]] inline void fill_block(float* block, std::int64_t height, const float* x,
                                              std::int64_t stride, std::int64_t num_rows,
                                              std::int64_t num_inputs) {
  for (std::int64_t begin = 0; begin < num_inputs; begin += kHalfPanel) {
    const std::int64_t count = std::min(kHalfPanel, num_inputs - begin);
    for (std::int64_t r = 0; r < num_rows; ++r) {
      float* to = block + place_in_block(height, r, begin);
      const float* from = x + r * stride + begin;
      if (count == kHalfPanel) {
        std::memcpy(to, from, kLineBytes);
      } else {
        std::copy_n(from, count, to);
      }
    }
  }
}

// What the next tiles read: so many lines of it are fetched for every sixteen inputs of this one.
struct Ahead {
  const float* floats;
  std::int64_t num_lines;
};

// sums[r][c] = the product of row r of the block with column c of the panel.
template <int kLanes, int kRows>
[[gnu::always_inline]] inline void tile(float (&sums)[kRows][kPanel], const float* block,
                                        const float* panel, std::int64_t num_inputs, Ahead ahead) {
  using Vector = typename VectorOf<kLanes>::type;
  for (std::int64_t column = 0; column < kHalfPanel; column += kLanes) {
    Vector first[kRows] = {};
    Vector second[kRows] = {};
    const float* x = block;
    const float* weights = panel + column;
    for (std::int64_t begin = 0; begin < num_inputs; begin += kHalfPanel) {
      for (std::int64_t n = 0; n < ahead.num_lines; ++n, ahead.floats += kHalfPanel) {
        __builtin_prefetch(ahead.floats, 0, 2);
      }
      const std::int64_t count = std::min(kHalfPanel, num_inputs - begin);
      for (std::int64_t k = 0; k < count; ++k, weights += kPanel) {
        const Vector left = *reinterpret_cast<const Vector*>(weights);
        const Vector right = *reinterpret_cast<const Vector*>(weights + kHalfPanel);
#pragma GCC unroll 14
        for (int r = 0; r < kRows; ++r) {
          first[r] += x[r * kHalfPanel + k] * left;
          second[r] += x[r * kHalfPanel + k] * right;
        }
      }
      x += kRows * kHalfPanel;
    }
    ahead.num_lines = 0;
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) {
      *reinterpret_cast<Vector*>(&sums[r][column]) = first[r];
      *reinterpret_cast<Vector*>(&sums[r][column + kHalfPanel]) = second[r];
    }
  }
}

}  // namespace asap
