// Which places each expert is in. Most are in one; an expert in several is redundant (ADR 0010).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "asap/layout.hpp"

namespace asap {

// A place is on one device, see first_place; no device has two of one expert.
struct Placement {
  std::vector<std::int32_t> begin;   // per expert, N + 1, into `places`
  std::vector<std::int32_t> places;  // by expert, ascending

  std::span<const std::int32_t> of(std::int32_t expert) const {
    const auto x = static_cast<std::size_t>(expert);
    return {places.begin() + begin[x], places.begin() + begin[x + 1]};
  }
};

// From the expert of each place. Throws std::invalid_argument.
Placement placement_of(const Layout& layout, std::span<const std::int32_t> expert_of_place);

}  // namespace asap
