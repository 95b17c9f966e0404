// The inner loops of rows.cpp, once for each instruction set; the running CPU picks one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "asap/rows.hpp"
#include "elements.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace asap {

inline constexpr std::int64_t kLineBytes = 64;

template <class To, class From>
[[gnu::always_inline]] inline void convert_loop(To* to, const From* from, std::int64_t count) {
  for (std::int64_t h = 0; h < count; ++h) narrow(widen(from[h]), to[h]);
}

// At least one term. The first one starts the sums and the last one is added on the way out, so
// that a row of one term (most rows, where a token has one expert a device) never touches them.
template <class To, class From>
[[gnu::always_inline]] inline void sum_loop(To* to, const From* from, std::int64_t hidden,
                                            std::span<const Term> terms) {
  constexpr std::int64_t kBlock = 512;  // 2 KB of sums stay in the first-level cache
  float sums[kBlock];
  for (std::int64_t begin = 0; begin < hidden; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, hidden - begin);
    const auto row = [&](const Term& term) { return from + term.row * hidden + begin; };
    const From* first = row(terms.front());
    const float weight = terms.front().weight;
    if (terms.size() == 1) {
      for (std::int64_t h = 0; h < count; ++h) narrow(weight * widen(first[h]), to[begin + h]);
      continue;
    }
    for (std::int64_t h = 0; h < count; ++h) sums[h] = weight * widen(first[h]);
    for (const Term& term : terms.subspan(1, terms.size() - 2)) {
      const From* next = row(term);
      for (std::int64_t h = 0; h < count; ++h) sums[h] += term.weight * widen(next[h]);
    }
    const From* last = row(terms.back());
    const float last_weight = terms.back().weight;
    for (std::int64_t h = 0; h < count; ++h) {
      narrow(sums[h] + last_weight * widen(last[h]), to[begin + h]);
    }
  }
}

// `stream` copies whole lines past the caches; no release store covers it before finish_streams.
struct Portable {
  // Runs a callable that is inlined into it, and so compiled for these vectors.
  template <class Body>
  static void run(Body body) {
    body();
  }
  static void stream(std::byte* to, const std::byte* from, std::int64_t num_bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(num_bytes));
  }
  static void finish_streams() {}
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
#define ASAP_AVX2 "avx2,fma"
struct Avx2 {
  template <class Body>
  [[gnu::target(ASAP_AVX2)]] static void run(Body body) {
    body();
  }
  [[gnu::target(ASAP_AVX2)]] static void stream(std::byte* to, const std::byte* from,
                                                std::int64_t num_bytes) {
    for (std::int64_t n = 0; n < num_bytes; n += 32) {
      const auto half_line = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + n));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + n), half_line);
    }
  }
  static void finish_streams() { _mm_sfence(); }
  template <class To, class From>
  [[gnu::target(ASAP_AVX2)]] static void convert(To* to, const From* from, std::int64_t count) {
    convert_loop(to, from, count);
  }
  template <class To, class From>
  [[gnu::target(ASAP_AVX2)]] static void sum(To* to, const From* from, std::int64_t hidden,
                                             std::span<const Term> terms) {
    sum_loop(to, from, hidden, terms);
  }
};

#define ASAP_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"
struct Avx512 {
  template <class Body>
  [[gnu::target(ASAP_AVX512)]] static void run(Body body) {
    body();
  }
  [[gnu::target(ASAP_AVX512)]] static void stream(std::byte* to, const std::byte* from,
                                                  std::int64_t num_bytes) {
    for (std::int64_t n = 0; n < num_bytes; n += kLineBytes) {
      const auto line = _mm512_loadu_si512(from + n);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + n), line);
    }
  }
  static void finish_streams() { _mm_sfence(); }
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

// Call `visit` with the kernels of the running CPU.
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

// Call `visit` with a value of an element type.
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

}  // namespace asap
