#include "asap/stages.hpp"

#include <cmath>

#include "elements.hpp"
#include "exponential.hpp"
#include "row_kernels.hpp"

namespace asap {
namespace {

template <class E>
[[gnu::always_inline]] inline void swiglu_loop(E* __restrict out, const E* __restrict gate,
                                               const E* __restrict up, std::int64_t width) {
  for (std::int64_t h = 0; h < width; ++h) {
    narrow(silu(widen(gate[h])) * widen(up[h]), out[h]);
  }
}

// Sums in lanes of their own, as vectors add.
template <class E>
[[gnu::always_inline]] inline float inverse_rms(const E* x, std::int64_t width, float eps) {
  constexpr std::int64_t kLanes = 32;
  float lanes[kLanes] = {};
  std::int64_t h = 0;
  for (; h + kLanes <= width; h += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = widen(x[h + lane]);
      lanes[lane] += value * value;
    }
  }
  float sum = 0.0f;
  for (const float lane : lanes) sum += lane;
  for (; h < width; ++h) sum += widen(x[h]) * widen(x[h]);
  return 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
}

template <class E>
[[gnu::always_inline]] inline void norm_loop(E* __restrict out, const Float32* __restrict x,
                                             const float* __restrict weight, std::int64_t width,
                                             float eps) {
  const float scale = inverse_rms(x, width, eps);
  for (std::int64_t h = 0; h < width; ++h) narrow(widen(x[h]) * scale * weight[h], out[h]);
}

// One head; pairs are (d, d + count).
template <class E>
[[gnu::always_inline]] inline void head_loop(E* __restrict first, E* __restrict second,
                                             const float* __restrict weight,
                                             const float* __restrict cos,
                                             const float* __restrict sin, std::int64_t count,
                                             float scale) {
  for (std::int64_t f = 0; f < count; ++f) {
    const float a = widen(first[f]) * scale * weight[f];
    const float b = widen(second[f]) * scale * weight[count + f];
    narrow(a * cos[f] - b * sin[f], first[f]);
    narrow(b * cos[f] + a * sin[f], second[f]);
  }
}

template <class E>
E* row_of(const Rows& rows, std::int64_t n) {
  return reinterpret_cast<E*>(rows.row(n));
}

// Call `visit` on the widest vectors with a value of the element type; it must be always_inline.
template <class Visit>
void on_vectors(RowType type, Visit visit) {
  with_kernels([&](auto kernels) {
    with_element(
        type, [&](auto element) { kernels.run([&] [[gnu::always_inline]] { visit(element); }); });
  });
}

}  // namespace

void swiglu(const Rows& out, const Rows& gate_up, std::int64_t num_rows) {
  const std::int64_t width = out.hidden;
  on_vectors(out.type, [&]<class E>(E) __attribute__((always_inline)) {
    for (std::int64_t n = 0; n < num_rows; ++n) {
      const E* gate = row_of<E>(gate_up, n);
      swiglu_loop(row_of<E>(out, n), gate, gate + width, width);
    }
  });
}

void rms_norm(const Rows& out, const float* x, const float* weight, float eps,
              std::int64_t num_rows) {
  const std::int64_t width = out.hidden;
  on_vectors(out.type, [&]<class E>(E) __attribute__((always_inline)) {
    for (std::int64_t n = 0; n < num_rows; ++n) {
      norm_loop(row_of<E>(out, n), reinterpret_cast<const Float32*>(x + n * width), weight, width,
                eps);
    }
  });
}

void norm_and_rotate(const Rows& rows, const Heads& heads, const float* cos, const float* sin,
                     std::int64_t num_rows) {
  const std::int64_t half = heads.head_dim / 2;
  on_vectors(rows.type, [&]<class E>(E) __attribute__((always_inline)) {
    for (std::int64_t n = 0; n < num_rows; ++n) {
      for (std::int64_t h = 0; h < heads.num_queries + heads.num_keys; ++h) {
        E* head = row_of<E>(rows, n) + h * heads.head_dim;
        const float* weight = h < heads.num_queries ? heads.query_norm : heads.key_norm;
        const float scale = inverse_rms(head, heads.head_dim, heads.eps);
        head_loop(head, head + half, weight, cos + n * half, sin + n * half, half, scale);
      }
    }
  });
}

}  // namespace asap
