// Float32 products of rows with a matrix that was laid out for them once, when it was loaded.
#pragma once

#include <cstdint>
#include <span>

namespace asap {

// A panel is what one pass over the inputs makes: two times sixteen columns, side by side.
inline constexpr std::int64_t kHalfPanel = 16;
inline constexpr std::int64_t kPanel = 2 * kHalfPanel;

inline constexpr std::int64_t num_panels(std::int64_t num_columns, std::int64_t width) {
  return (num_columns + width - 1) / width;
}

// A matrix of `num_inputs` rows in panels of [num_inputs][kPanel]; beyond its columns are zeros.
// Of gate and up, a panel has sixteen columns of the one, then sixteen of the other.
struct Panels {
  const float* values;
  std::int64_t num_inputs;
  std::int64_t num_outputs;  // of gate and up: of their product
};

// out[n] = x[n] times the matrix, each of `num_threads` its part of the panels.
void multiply(float* out, const float* x, const Panels& matrix, std::int64_t num_rows,
              int num_threads);

// out[n] = (silu(x[n] gate) * (x[n] up)) down: SwiGLU experts whose middle never leaves the cache.
// The rows of each expert are consecutive, and so are the panels of the experts, the first one's
// given.
void multiply_swiglu(float* out, const float* x, std::span<const std::int32_t> num_rows_E,
                     const Panels& gate_up, const Panels& down, int num_threads);

}  // namespace asap
