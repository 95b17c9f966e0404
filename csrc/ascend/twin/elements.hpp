// The 16-bit element types of a kernel, and what Cast makes of a number.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

struct bfloat16_t {
  std::uint16_t bits;
};

struct half {
  std::uint16_t bits;
};

namespace asap::twin {

inline float widen(bfloat16_t x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

inline float widen(half x) {
  const int exponent = x.bits >> 10 & 31;
  const float fraction = static_cast<float>(x.bits & 1023);
  float value =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024.0f, exponent - 25);
  if (exponent == 31) {
    value = fraction == 0 ? std::numeric_limits<float>::infinity()
                          : std::numeric_limits<float>::quiet_NaN();
  }
  return x.bits >> 15 != 0 ? -value : value;
}

template <class T>
float widen(T x) {
  return static_cast<float>(x);
}

// To nearest, ties to even.
inline bfloat16_t to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return {static_cast<std::uint16_t>(bits >> 16 | 64)};
  return {static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

inline half to_half(float x) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const float size = std::fabs(x);
  if (std::isnan(x)) return {static_cast<std::uint16_t>(sign | 0x7E00)};
  if (size >= 65520.0f) return {static_cast<std::uint16_t>(sign | 0x7C00)};
  int exponent = size == 0 ? -14 : std::ilogb(size);
  exponent = exponent < -14 ? -14 : exponent;
  const float steps = std::nearbyint(std::ldexp(size, 10 - exponent));  // 0..2048
  const int bits = ((exponent + 14) << 10) + static_cast<int>(steps);
  return {static_cast<std::uint16_t>(sign | bits)};
}

template <class T>
T narrow(float x) {
  if constexpr (std::is_same_v<T, bfloat16_t>) {
    return to_bfloat16(x);
  } else if constexpr (std::is_same_v<T, half>) {
    return to_half(x);
  } else if constexpr (std::is_integral_v<T>) {
    constexpr float kLow = static_cast<float>(std::numeric_limits<T>::min());
    constexpr float kHigh = static_cast<float>(std::numeric_limits<T>::max());
    const float rounded = std::nearbyint(x);
    return rounded <= kLow    ? std::numeric_limits<T>::min()
           : rounded >= kHigh ? std::numeric_limits<T>::max()
                              : static_cast<T>(rounded);
  } else {
    return x;
  }
}

}  // namespace asap::twin
