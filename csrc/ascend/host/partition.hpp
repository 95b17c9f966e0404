// Which cores of a die drive which stream (paper 4.3), and what a die has (4.1). MoE devices only:
// on attention devices traffic beside compute lengthens attention, so they have one stream.
#pragma once

#include <array>

namespace asap::ascend {

struct Cores {
  int vector;
  int cube;
  bool operator==(const Cores&) const = default;
};

inline constexpr Cores kDieCores{48, 24};

inline constexpr Cores kComputeCores{24, 24};
inline constexpr Cores kReceiveCores{12, 0};
inline constexpr Cores kSendCores{12, 0};

inline constexpr std::array kMoEStreams{kComputeCores, kReceiveCores, kSendCores};

constexpr Cores sum_of(const auto& streams) {
  Cores sum{};
  for (const Cores& cores : streams) sum = {sum.vector + cores.vector, sum.cube + cores.cube};
  return sum;
}

// A stream that asked for a core another one holds would wait for it for ever.
static_assert(sum_of(kMoEStreams).vector <= kDieCores.vector);
static_assert(sum_of(kMoEStreams).cube <= kDieCores.cube);

// Of a die with `cores`, by stream: compute has each cube core and a vector core for it, the other
// two share the rest.
constexpr Cores compute_cores(const Cores& cores) { return {cores.cube, cores.cube}; }
constexpr Cores transfer_cores(const Cores& cores) { return {(cores.vector - cores.cube) / 2, 0}; }

static_assert(compute_cores(kDieCores) == kComputeCores);
static_assert(transfer_cores(kDieCores) == kReceiveCores && kReceiveCores == kSendCores);

}  // namespace asap::ascend
