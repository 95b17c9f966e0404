// Row types as C++ types, each widened to float32 and narrowed from it (to nearest, ties to even).
// The conversions have no branches, so that loops over them vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace asap {

struct Float32 {
  float value;
};
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

inline float widen(Float32 x) { return x.value; }

inline float widen(BFloat16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

inline float widen(Float16 x) {
  const std::uint32_t magnitude = (x.bits & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;  // exponent bias 15 -> 127
  const std::uint32_t special = magnitude | 0x7f800000u;            // infinity or NaN
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t sign = (x.bits & 0x8000u) << 16;
  return std::bit_cast<float>(sign | (magnitude >= 0x0f800000u ? special : finite));
}

inline void narrow(float value, Float32& to) { to.value = value; }

inline void narrow(float value, BFloat16& to) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);  // ties to even
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to.bits = static_cast<std::uint16_t>((is_nan ? bits | 0x400000u : rounded) >> 16);
}

inline void narrow(float value, Float16& to) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t rebiased = magnitude - (112u << 23);
  const std::uint32_t normal = (rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13;
  // Adding 0.5 leaves multiples of 2^-24, the step of float16's subnormals, in the low bits.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
  const std::uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  const std::uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const std::uint32_t result = magnitude >= (143u << 23) ? large : finite;
  to.bits = static_cast<std::uint16_t>(result | ((bits >> 16) & 0x8000u));
}

}  // namespace asap
