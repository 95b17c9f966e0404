// What the model's stages do between matrix products, each in one pass over memory: between two
// products of a small model, a pass costs as much as an eighth of the product (docs/log.md).
#pragma once

#include <cstdint>

#include "asap/rows.hpp"

namespace asap {

// out[n] = silu(gate) * up, the two halves of gate_up[n]; both of one type.
void swiglu(const Rows& out, const Rows& gate_up, std::int64_t num_rows);

// out[n] = x[n] / rms(x[n]) * weight, from float32 and in float32.
void rms_norm(const Rows& out, const float* x, const float* weight, float eps,
              std::int64_t num_rows);

// The heads of one token in a row: queries, keys, values.
struct Heads {
  std::int64_t num_queries;
  std::int64_t num_keys;
  std::int64_t head_dim;
  const float* query_norm;  // [head_dim]
  const float* key_norm;
  float eps;
};

// In place: each query and key head of row n becomes its RMS norm, turned by the angles of row n,
// [head_dim / 2] each. Values stay.
void norm_and_rotate(const Rows& rows, const Heads& heads, const float* cos, const float* sin,
                     std::int64_t num_rows);

}  // namespace asap
