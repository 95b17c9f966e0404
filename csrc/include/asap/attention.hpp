// Causal softmax attention of one sequence, float32, without the matrix of all scores.
#pragma once

#include <cstdint>

namespace asap {

// Vectors of several heads: number d of head h of token t is floats[h * head_stride + t *
// token_stride + d].
struct HeadVectors {
  const float* floats;
  std::int64_t num_heads;
  std::int64_t num_tokens;
  std::int64_t width;
  std::int64_t head_stride;
  std::int64_t token_stride;

  const float* vector(std::int64_t head, std::int64_t token) const {
    return floats + head * head_stride + token * token_stride;
  }
};

// out[t][h] = the mix of values that head h of the t-th query wants: queries are the last of the
// tokens that have keys, each sees all up to itself. Heads of queries share those of keys and
// values in order. Scores are multiplied by `scale`. Bands of queries are shared among
// `num_threads`; one head of keys and values for each of them is laid out at a time.
void attend(float* out, const HeadVectors& query, const HeadVectors& key, const HeadVectors& value,
            float scale, int num_threads);

}  // namespace asap
