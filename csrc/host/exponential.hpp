// The exponential function of every loop that has one.
#pragma once

#include <bit>
#include <cstdint>

namespace asap {

// Without branches or calls, so that loops over it vectorise. Relative error below 2e-7.
inline float exp_of(float x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;    // exact in few bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;  // ln 2 - kLn2High
  constexpr float kRound = 12582912.0f;       // 1.5 * 2^23: what is added to it loses its fraction
  const float below = x > 88.0f ? 88.0f : x;
  const float clamped = below < -87.0f ? -87.0f : below;  // 2^n stays normal
  const float shifted = clamped * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = clamped - n * kLn2High - n * kLn2Low;  // |r| <= ln 2 / 2: Taylor to r^7
  float sum = 1.0f / 5040;
  sum = sum * r + 1.0f / 720;
  sum = sum * r + 1.0f / 120;
  sum = sum * r + 1.0f / 24;
  sum = sum * r + 1.0f / 6;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) << 23;  // its low bits are n
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(sum) + exponent);
}

inline float silu(float x) { return x / (1.0f + exp_of(-x)); }

}  // namespace asap
