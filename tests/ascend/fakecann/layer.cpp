// What torch-npu and aten have for the parts of a layer beside attention: norms, SwiGLU, rotation.
#include <cmath>

#include "operators.hpp"

using namespace fake;

namespace {

constexpr std::int64_t kHalves = 0, kPairs = 1;  // modes of rotary embedding

using Floats = std::vector<float>;

// Scales each row of x, as long as gamma, to unit root mean square.
void rms_norm(Tensor x, Tensor gamma, double eps, Tensor y, Tensor scale) {
  const auto hidden = static_cast<std::size_t>(gamma->count());
  Floats rows = read<float>(x);
  const Floats weights = read<float>(gamma);
  Numbers scales;
  for (std::size_t first = 0; first < rows.size(); first += hidden) {
    double sum = 0;
    for (std::size_t h = 0; h < hidden; ++h) sum += double{rows[first + h]} * rows[first + h];
    scales.push_back(1 / std::sqrt(sum / static_cast<double>(hidden) + eps));
    const auto factor = static_cast<float>(scales.back());
    for (std::size_t h = 0; h < hidden; ++h) rows[first + h] *= factor * weights[h];
  }
  write(y, rows);
  write(scale, scales);
}

struct Moments {
  Tensor mean, rstd;
};

void layer_norm(Tensor x, std::size_t hidden, Tensor weight, Tensor bias, double eps, Tensor out,
                Moments moments) {
  Numbers rows = read(x), means, scales;
  const Numbers weights = weight == nullptr ? Numbers(hidden, 1) : read(weight);
  const Numbers shifts = bias == nullptr ? Numbers(hidden, 0) : read(bias);
  for (std::size_t first = 0; first < rows.size(); first += hidden) {
    double sum = 0, squares = 0;
    for (std::size_t h = 0; h < hidden; ++h) sum += rows[first + h];
    const double mean = sum / static_cast<double>(hidden);
    for (std::size_t h = 0; h < hidden; ++h) squares += std::pow(rows[first + h] - mean, 2);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + eps);
    for (std::size_t h = 0; h < hidden; ++h) {
      rows[first + h] = (rows[first + h] - mean) * scale * weights[h] + shifts[h];
    }
    means.push_back(mean);
    scales.push_back(scale);
  }
  write(out, rows);
  if (moments.mean != nullptr) write(moments.mean, means);
  if (moments.rstd != nullptr) write(moments.rstd, scales);
}

// The first half of the last axis decides how much of the second passes.
void swiglu(Tensor x, Tensor out) {
  const auto width = static_cast<std::size_t>(out->dim(-1));
  const Floats rows = read<float>(x);
  Floats passed(static_cast<std::size_t>(out->count()));
  for (std::size_t n = 0; n < passed.size(); ++n) {
    const std::size_t gate = n / width * 2 * width + n % width;
    passed[n] = rows[gate] / (1 + std::exp(-rows[gate])) * rows[gate + width];
  }
  write(out, passed);
}

// x [1, S, N, D], angles [1, S, 1, D]; a number is turned with the one `step` away.
void rotate(Tensor x, Tensor cos, Tensor sin, std::int64_t step, Tensor out) {
  const std::int64_t heads = x->dim(2), width = x->dim(3);
  const Floats numbers = read<float>(x), cosines = read<float>(cos), sines = read<float>(sin);
  Floats turned(numbers.size());
  for (std::int64_t n = 0; n < x->count(); ++n) {
    const std::int64_t d = n % width;
    const auto angle = static_cast<std::size_t>(n / (heads * width) * width + d);
    const auto at = static_cast<std::size_t>(n);
    const float other = d / step % 2 == 0 ? -numbers[static_cast<std::size_t>(n + step)]
                                          : numbers[static_cast<std::size_t>(n - step)];
    turned[at] = numbers[at] * cosines[angle] + other * sines[angle];
  }
  write(out, turned);
}

}  // namespace

extern "C" {

ASAP_OPERATOR(RmsNorm, Tensor x, Tensor gamma, double eps, Tensor y, Tensor scale) {
  return plan(bytes, e, [=] { rms_norm(x, gamma, eps, y, scale); });
}

ASAP_OPERATOR(LayerNorm, Tensor x, Ints shape, Tensor weight, Tensor bias, double eps, Tensor out,
              Tensor mean, Tensor rstd) {
  const auto hidden = static_cast<std::size_t>(count(shape->values));
  return plan(bytes, e, [=] { layer_norm(x, hidden, weight, bias, eps, out, {mean, rstd}); });
}

ASAP_OPERATOR(SwiGlu, Tensor x, std::int64_t axis, Tensor out) {
  if (axis != -1) return kInvalid;
  return plan(bytes, e, [=] { swiglu(x, out); });
}

ASAP_OPERATOR(RotaryPositionEmbedding, Tensor x, Tensor cos, Tensor sin, std::int64_t mode,
              Tensor out) {
  if ((mode != kHalves && mode != kPairs) || x->dims.size() != 4 || x->dim(0) != 1 ||
      cos->dim(2) != 1 || cos->dim(3) != x->dim(3)) {
    return kInvalid;
  }
  const std::int64_t step = mode == kPairs ? 1 : x->dim(3) / 2;
  return plan(bytes, e, [=] { rotate(x, cos, sin, step, out); });
}
}
