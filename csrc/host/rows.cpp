#include "asap/rows.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "asap/errors.hpp"

namespace asap {
namespace {

// Row types as C++ types. The conversions have no branches, so that loops over them vectorise.
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

// Loops, compiled once for each instruction set by the wrappers below.

template <class To, class From>
[[gnu::always_inline]] inline void convert_loop(To* to, const From* from, std::int64_t count) {
  for (std::int64_t h = 0; h < count; ++h) narrow(widen(from[h]), to[h]);
}

template <class To, class From>
[[gnu::always_inline]] inline void sum_loop(To* to, const From* from, std::int64_t hidden,
                                            std::span<const Term> terms) {
  constexpr std::int64_t kBlock = 512;  // 2 KB of sums stay in the first-level cache
  float sums[kBlock];
  for (std::int64_t begin = 0; begin < hidden; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, hidden - begin);
    std::fill_n(sums, count, 0.0f);
    for (const Term& term : terms) {
      const From* row = from + term.row * hidden + begin;
      for (std::int64_t h = 0; h < count; ++h) sums[h] += term.weight * widen(row[h]);
    }
    for (std::int64_t h = 0; h < count; ++h) narrow(sums[h], to[begin + h]);
  }
}

struct Portable {
  template <class To, class From>
  static void convert(To* to, const From* from, std::int64_t count) {
    convert_loop(to, from, count);
  }
  template <class To, class From>
  static void sum(To* to, const From* from, std::int64_t hidden, std::span<const Term> terms) {
    sum_loop(to, from, hidden, terms);
  }
};

#if defined(__x86_64__)
struct Avx2 {
  template <class To, class From>
  [[gnu::target("avx2,fma")]] static void convert(To* to, const From* from, std::int64_t count) {
    convert_loop(to, from, count);
  }
  template <class To, class From>
  [[gnu::target("avx2,fma")]] static void sum(To* to, const From* from, std::int64_t hidden,
                                              std::span<const Term> terms) {
    sum_loop(to, from, hidden, terms);
  }
};

#define ASAP_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"
struct Avx512 {
  template <class To, class From>
  [[gnu::target(ASAP_AVX512)]] static void convert(To* to, const From* from, std::int64_t count) {
    convert_loop(to, from, count);
  }
  template <class To, class From>
  [[gnu::target(ASAP_AVX512)]] static void sum(To* to, const From* from, std::int64_t hidden,
                                               std::span<const Term> terms) {
    sum_loop(to, from, hidden, terms);
  }
};
#endif

// Call `visit` with the kernels of this CPU.
template <class Visit>
void with_kernels(Visit visit) {
#if defined(__x86_64__)
  static const bool has_avx512 =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx512) return visit(Avx512{});
  if (has_avx2) return visit(Avx2{});
#endif
  visit(Portable{});
}

template <class Visit>
void with_element(RowType type, Visit visit) {
  switch (type) {
    case RowType::float32:
      return visit(Float32{});
    case RowType::bfloat16:
      return visit(BFloat16{});
    case RowType::float16:
      return visit(Float16{});
  }
}

// Call `visit` with the kernels and one value of each element type.
template <class Visit>
void with_types(RowType to, RowType from, Visit visit) {
  with_kernels([&](auto kernels) {
    with_element(to, [&](auto to_value) {
      with_element(from, [&](auto from_value) { visit(kernels, to_value, from_value); });
    });
  });
}

}  // namespace

RowType row_type_of(std::string_view name) {
  if (name == "float32") return RowType::float32;
  if (name == "bfloat16") return RowType::bfloat16;
  ASAP_CHECK(name == "float16", "row type '", name, "'; known: float32, bfloat16, float16");
  return RowType::float16;
}

void gather_rows(const Rows& to, const Rows& from, std::span<const std::int32_t> idx) {
  if (to.type == from.type) {
    const auto row_bytes = static_cast<std::size_t>(to.row_bytes());
    for (std::size_t n = 0; n < idx.size(); ++n) {
      std::memcpy(to.row(static_cast<std::int64_t>(n)), from.row(idx[n]), row_bytes);
    }
    return;
  }
  with_types(to.type, from.type, [&]<class To, class From>(auto kernels, To, From) {
    for (std::size_t n = 0; n < idx.size(); ++n) {
      kernels.convert(reinterpret_cast<To*>(to.row(static_cast<std::int64_t>(n))),
                      reinterpret_cast<const From*>(from.row(idx[n])), to.hidden);
    }
  });
}

void copy_rows(const Rows& to, const Rows& from, std::int64_t count) {
  if (to.type == from.type) {
    if (count > 0)
      std::memcpy(to.bytes, from.bytes, static_cast<std::size_t>(count * to.row_bytes()));
    return;
  }
  with_types(to.type, from.type, [&]<class To, class From>(auto kernels, To, From) {
    kernels.convert(reinterpret_cast<To*>(to.bytes), reinterpret_cast<const From*>(from.bytes),
                    count * to.hidden);
  });
}

void sum_rows(const Rows& to, const Rows& from, std::span<const std::int32_t> begin,
              std::span<const Term> terms) {
  with_types(to.type, from.type, [&]<class To, class From>(auto kernels, To, From) {
    for (std::size_t n = 0; n + 1 < begin.size(); ++n) {
      const auto first = static_cast<std::size_t>(begin[n]);
      const auto count = static_cast<std::size_t>(begin[n + 1]) - first;
      kernels.sum(reinterpret_cast<To*>(to.row(static_cast<std::int64_t>(n))),
                  reinterpret_cast<const From*>(from.bytes), to.hidden,
                  terms.subspan(first, count));
    }
  });
}

}  // namespace asap
