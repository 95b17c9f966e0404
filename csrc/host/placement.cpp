#include "asap/placement.hpp"

#include <algorithm>
#include <numeric>

namespace asap {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

void check_device(const Layout& layout, std::span<const std::int32_t> experts, std::int64_t e) {
  std::vector<bool> is_there(at(layout.num_experts));
  for (std::int64_t place = first_place(layout, e); place < first_place(layout, e + 1); ++place) {
    const std::int32_t expert = experts[at(place)];
    ASAP_CHECK(expert >= 0 && expert < layout.num_experts, "place ", place, ": expert ", expert,
               " is not in 0..", layout.num_experts - 1);
    ASAP_CHECK(!is_there[at(expert)], "MoE device ", e, " has expert ", expert, " twice");
    is_there[at(expert)] = true;
  }
}

}  // namespace

Placement placement_of(const Layout& layout, std::span<const std::int32_t> expert_of_place) {
  ASAP_CHECK(std::ssize(expert_of_place) == layout.num_places,
             "expert_of_place: ", std::ssize(expert_of_place),
             " for num_places=", layout.num_places);
  for (std::int64_t e = 0; e < layout.moe_devices; ++e) check_device(layout, expert_of_place, e);
  Placement placement{std::vector<std::int32_t>(at(layout.num_experts + 1)),
                      std::vector<std::int32_t>(at(layout.num_places))};
  std::iota(placement.places.begin(), placement.places.end(), 0);
  std::ranges::stable_sort(placement.places, {},
                           [&](std::int32_t p) { return expert_of_place[at(p)]; });
  for (const std::int32_t expert : expert_of_place) ++placement.begin[at(expert + 1)];
  for (std::int64_t x = 0; x < layout.num_experts; ++x) {
    ASAP_CHECK(placement.begin[at(x + 1)] > 0, "expert ", x, " has no place");
    placement.begin[at(x + 1)] += placement.begin[at(x)];
  }
  return placement;
}

}  // namespace asap
