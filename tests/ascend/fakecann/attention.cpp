// The attention operators of torch-npu, in float32: products as loops that the compiler vectorises.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "operators.hpp"

using namespace fake;

namespace {

// One head of keys [m, D] and values [m, V], and a query of it.
struct Head {
  const float *key, *value;
  std::int64_t key_width, value_width;

  // Softmax attention over the first `num_seen` keys; `scores` has room for them, `out` is zero.
  void attend(const float* query, std::int64_t num_seen, float scale, float* scores,
              float* out) const {
    float largest = -std::numeric_limits<float>::infinity(), sum = 0;
    for (std::int64_t k = 0; k < num_seen; ++k) {
      const float* row = key + k * key_width;
      float score = 0;
#pragma omp simd reduction(+ : score)
      for (std::int64_t d = 0; d < key_width; ++d) score += query[d] * row[d];
      scores[k] = score * scale;
      largest = std::max(largest, scores[k]);
    }
    for (std::int64_t k = 0; k < num_seen; ++k) sum += scores[k] = std::exp(scores[k] - largest);
    for (std::int64_t k = 0; k < num_seen; ++k) {
      const float share = scores[k] / sum, *row = value + k * value_width;
      for (std::int64_t d = 0; d < value_width; ++d) out[d] += share * row[d];
    }
  }
};

using Floats = std::vector<float>;

struct Sizes {
  std::int64_t num_heads, num_new, key_heads, num_keys, width, value_width;
};

// query [N, n, D], key [G, m, D], value [G, m, V]. A causal query sees keys up to its own, the last
// query the last key.
Floats mix(const Floats& query, const Floats& key, const Floats& value, const Sizes& sizes,
           double scale, bool is_causal) {
  const std::int64_t num_rows = sizes.num_heads * sizes.num_new;
  const std::int64_t share = sizes.num_heads / sizes.key_heads;
  Floats mixed(static_cast<std::size_t>(num_rows * sizes.value_width), 0);
  Floats scores(static_cast<std::size_t>(sizes.num_keys));
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const std::int64_t first_key = row / sizes.num_new / share * sizes.num_keys;
    const Head head{key.data() + first_key * sizes.width,
                    value.data() + first_key * sizes.value_width, sizes.width, sizes.value_width};
    const std::int64_t later = is_causal ? sizes.num_new - 1 - row % sizes.num_new : 0;
    head.attend(query.data() + row * sizes.width, sizes.num_keys - later, static_cast<float>(scale),
                scores.data(), mixed.data() + row * sizes.value_width);
  }
  return mixed;
}

// query [1, N, n, D], key [1, G, m, D], value [1, G, m, V].
void attend(Tensor query, Tensor key, Tensor value, double scale, bool is_causal, Tensor out) {
  const Sizes sizes{query->dim(1), query->dim(2), key->dim(1),
                    key->dim(2),   query->dim(3), value->dim(3)};
  write(out,
        mix(read<float>(query), read<float>(key), read<float>(value), sizes, scale, is_causal));
}

// Only the mask that hides what comes after a query at the end is understood here.
bool is_known_mask(Tensor mask, std::int64_t sparse_mode) {
  if (mask == nullptr) return true;
  if (sparse_mode != 3 || mask->type != kBool || mask->dim(-1) != 2048 || mask->dim(-2) != 2048) {
    return false;
  }
  const Numbers corner = load(mask, {2, 2}, {mask->strides.end()[-2], mask->strides.back()});
  return corner == Numbers{0, 1, 0, 0};
}

}  // namespace

extern "C" {

ASAP_OPERATOR(FlashAttentionScore, Tensor query, Tensor key, Tensor value, Tensor, Tensor, Tensor,
              Tensor mask, Ints, double scale, double keep_share, std::int64_t, std::int64_t,
              std::int64_t num_heads, char* layout, std::int64_t, std::int64_t sparse_mode, Tensor,
              Tensor, Tensor, Tensor out) {
  if (std::string_view(layout) != "BNSD" || num_heads != query->dim(1) || keep_share != 1 ||
      !is_known_mask(mask, sparse_mode)) {
    return kInvalid;
  }
  return plan(bytes, e, [=] { attend(query, key, value, scale, mask != nullptr, out); });
}

ASAP_OPERATOR(FusedInferAttentionScoreV3, Tensor query, List keys, List values, Tensor, Tensor mask,
              Ints, Ints, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor table,
              Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Ints,
              Tensor query_rope, Tensor key_rope, Tensor, std::int64_t num_heads, double scale,
              std::int64_t, std::int64_t, char* layout, std::int64_t num_key_heads,
              std::int64_t sparse_mode, std::int64_t, std::int64_t, std::int64_t, bool,
              std::int64_t, std::int64_t, Tensor out, Tensor) {
  const Tensor key = keys->tensors.at(0), value = values->tensors.at(0);
  if (std::string_view(layout) != "BNSD" || num_heads != query->dim(1) ||
      num_key_heads != key->dim(1) || query->type == kFloat32 || key->dims != value->dims ||
      query_rope != nullptr || key_rope != nullptr || table != nullptr ||
      !is_known_mask(mask, sparse_mode)) {
    return kInvalid;
  }
  return plan(bytes, e, [=] { attend(query, key, value, scale, mask != nullptr, out); });
}
}
