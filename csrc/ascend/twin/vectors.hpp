// The vector instructions the kernels use; each reads and writes when it runs, not when issued.
#pragma once

#include "kernel_operator.h"

namespace AscendC {

template <class T>
struct Operand {
  LocalTensor<T> tensor;
  std::uint32_t count;

  Operand(const LocalTensor<T>& of, std::uint32_t elements) : tensor(of), count(elements) {
    if (of.begin() % twin::kBlockBytes != 0) throw twin::Fault("vector operand not at 32 B");
  }
  twin::Touch touch(bool writes) const { return tensor.touch(0, count, writes); }
};

template <class To, class Compute, class... From>
void issue_vector(const Operand<To>& to, Compute compute, const Operand<From>&... from) {
  twin::Core& core = twin::this_core();
  const std::vector<twin::Touch> touches{to.touch(true), from.touch(false)...};
  auto* bytes = core.unified.data();
  const auto all_set = [&core](const twin::Touch& touch) {
    const auto begin = core.is_set.begin() + touch.begin, end = core.is_set.begin() + touch.end;
    return std::find(begin, end, false) == end;
  };
  core.issue(PIPE_V, touches, [=, &core](twin::Random&) {
    if (!(all_set(from.touch(false)) && ...)) {
      throw twin::Fault("vector instruction reads what nothing has written");
    }
    compute(reinterpret_cast<To*>(bytes + to.tensor.begin()),
            reinterpret_cast<const From*>(bytes + from.tensor.begin())...);
    const auto first = core.is_set.begin() + to.touch(true).begin;
    std::fill(first, core.is_set.begin() + to.touch(true).end, true);
    return true;
  });
}

// to[n] = f(a[n], b[n] ...).
template <class To, class F, class... From>
void issue_map(const LocalTensor<To>& to, std::uint32_t count, F f,
               const LocalTensor<From>&... from) {
  issue_vector(
      Operand<To>(to, count),
      [=](To* out, const From*... in) {
        for (std::uint32_t n = 0; n < count; ++n) out[n] = f(in[n]...);
      },
      Operand<From>(from, count)...);
}

template <class T>
void Duplicate(const LocalTensor<T>& to, T value, std::uint32_t count) {
  issue_map(to, count, [value] { return value; });
}

template <class To, class From>
void Cast(const LocalTensor<To>& to, const LocalTensor<From>& from, RoundMode,
          std::uint32_t count) {
  issue_map(to, count, [](From x) { return twin::narrow<To>(twin::widen(x)); }, from);
}

template <class T>
void Mul(const LocalTensor<T>& to, const LocalTensor<T>& a, const LocalTensor<T>& b,
         std::uint32_t count) {
  issue_map(to, count, [](T x, T y) { return x * y; }, a, b);
}

template <class T>
void Div(const LocalTensor<T>& to, const LocalTensor<T>& a, const LocalTensor<T>& b,
         std::uint32_t count) {
  issue_map(to, count, [](T x, T y) { return x / y; }, a, b);
}

template <class T>
void Adds(const LocalTensor<T>& to, const LocalTensor<T>& a, T scalar, std::uint32_t count) {
  issue_map(to, count, [scalar](T x) { return x + scalar; }, a);
}

template <class T>
void Muls(const LocalTensor<T>& to, const LocalTensor<T>& a, T scalar, std::uint32_t count) {
  issue_map(to, count, [scalar](T x) { return x * scalar; }, a);
}

template <class T>
void Exp(const LocalTensor<T>& to, const LocalTensor<T>& a, std::uint32_t count) {
  issue_map(to, count, [](T x) { return std::exp(x); }, a);
}

template <class T>
void Abs(const LocalTensor<T>& to, const LocalTensor<T>& a, std::uint32_t count) {
  issue_map(to, count, [](T x) { return std::fabs(x); }, a);
}

// to += scalar * a.
template <class T>
void Axpy(const LocalTensor<T>& to, const LocalTensor<T>& a, T scalar, std::uint32_t count) {
  issue_map(to, count, [scalar](T sum, T x) { return sum + scalar * x; }, to, a);
}

// to[0] = the largest of a; `work` is scratch.
template <class T>
void ReduceMax(const LocalTensor<T>& to, const LocalTensor<T>& a, const LocalTensor<T>& work,
               std::int32_t count, bool = false) {
  const auto size = static_cast<std::uint32_t>(count);
  issue_map(work, size, [](T x) { return x; }, a);
  twin::this_core().barrier(PIPE_V);
  issue_vector(
      Operand<T>(to, 1), [size](T* out, const T* in) { *out = *std::max_element(in, in + size); },
      Operand<T>(a, size));
}

}  // namespace AscendC
