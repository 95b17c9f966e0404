#include "asap/routing.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace asap {
namespace {

constexpr std::int32_t kNobody = -1;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace

Combine combine_of(std::string_view name) {
  if (name == "reduced") return Combine::reduced;
  ASAP_CHECK(name == "per_expert", "combine '", name, "'; known: reduced, per_expert");
  return Combine::per_expert;
}

Routing::Routing(const Layout& layout, const Placement& placement, Combine combine)
    : layout_(&layout),
      placement_(&placement),
      combine_(combine),
      device_of_(at(layout.num_places)),
      expert_seen_(at(layout.num_experts)),
      device_seen_(at(layout.moe_devices)),
      load_(at(layout.moe_devices)),
      row_begin_(at(layout.moe_devices + 1)),
      pair_begin_(at(layout.num_places + 1)),
      term_begin_(1) {
  for (std::int64_t e = 0; e < layout.moe_devices; ++e) {
    std::fill(device_of_.begin() + first_place(layout, e),
              device_of_.begin() + first_place(layout, e + 1), static_cast<std::int32_t>(e));
  }
}

void Routing::plan(const Choices& choices) {
  count(choices);
  fill(choices);
}

void Routing::count(const Choices& choices) {
  std::fill(expert_seen_.begin(), expert_seen_.end(), kNobody);
  std::fill(device_seen_.begin(), device_seen_.end(), kNobody);
  std::fill(row_begin_.begin(), row_begin_.end(), 0);
  std::fill(pair_begin_.begin(), pair_begin_.end(), 0);
  std::fill(load_.begin(), load_.end(), 0);
  places_.resize(at(choices.num_tokens * layout_->top_k));
  const std::int32_t* ids = choices.expert_ids;
  std::int32_t* places = places_.data();
  const bool has_redundant = layout_->num_places > layout_->num_experts;
  for (std::int32_t token = 0; token < choices.num_tokens; ++token) {
    check(token, ids);
    for (std::int64_t k = 0; k < layout_->top_k; ++k) {
      const auto candidates = placement_->of(ids[k]);
      places[k] = candidates.front();
      if (candidates.size() == 1) take(token, places[k]);
    }
    for (std::int64_t k = 0; has_redundant && k < layout_->top_k; ++k) {
      if (placement_->of(ids[k]).size() == 1) continue;
      places[k] = best_place(token, ids[k]);
      take(token, places[k]);
    }
    ids += layout_->top_k;
    places += layout_->top_k;
  }
  std::partial_sum(row_begin_.begin(), row_begin_.end(), row_begin_.begin());
  std::partial_sum(pair_begin_.begin(), pair_begin_.end(), pair_begin_.begin());
}

void Routing::check(std::int32_t token, const std::int32_t* expert_ids) {
  for (const std::int32_t id : std::span(expert_ids, at(layout_->top_k))) {
    ASAP_CHECK(id >= 0 && id < layout_->num_experts, "token ", token, ": expert ", id,
               " is not in 0..", layout_->num_experts - 1);
    ASAP_CHECK(expert_seen_[at(id)] != token, "token ", token, ": expert ", id, " is chosen twice");
    expert_seen_[at(id)] = token;
  }
}

std::int32_t Routing::best_place(std::int32_t token, std::int32_t expert) const {
  return *std::ranges::min_element(placement_->of(expert), {}, [&](std::int32_t place) {
    const std::size_t device = at(device_of_[at(place)]);
    return std::pair(device_seen_[device] != token, load_[device]);
  });
}

void Routing::take(std::int32_t token, std::int32_t place) {
  ++pair_begin_[at(place + 1)];
  const std::int32_t device = device_of_[at(place)];
  ++load_[at(device)];
  if (device_seen_[at(device)] == token) return;
  device_seen_[at(device)] = token;
  ++row_begin_[at(device + 1)];
}

void Routing::fill(const Choices& choices) {
  std::fill(device_seen_.begin(), device_seen_.end(), kNobody);
  next_row_ = row_begin_;
  next_pair_ = pair_begin_;
  tokens_.resize(at(row_begin_.back()));
  row_idx_.resize(at(pair_begin_.back()));
  weights_.resize(at(pair_begin_.back()));
  terms_.clear();
  term_begin_.assign(1, 0);
  std::int64_t choice = 0;
  for (std::int32_t token = 0; token < choices.num_tokens; ++token) {
    for (std::int64_t k = 0; k < layout_->top_k; ++k, ++choice) {
      const std::int32_t place = places_[at(choice)];
      const std::size_t device = at(device_of_[at(place)]);
      if (device_seen_[device] != token) {
        device_seen_[device] = token;
        if (combine_ == Combine::reduced) terms_.push_back({next_row_[device], 1.0f});
        tokens_[at(next_row_[device]++)] = token;
      }
      const std::int32_t pair = next_pair_[at(place)]++;
      row_idx_[at(pair)] = next_row_[device] - 1 - row_begin_[device];
      weights_[at(pair)] = choices.weights[choice];
      if (combine_ == Combine::per_expert) terms_.push_back({pair, choices.weights[choice]});
    }
    term_begin_.push_back(static_cast<std::int32_t>(terms_.size()));
  }
}

std::int64_t Routing::first_pair(std::int64_t moe_device) const {
  return pair_begin_[at(first_place(*layout_, moe_device))];
}

std::span<const std::int32_t> Routing::tokens(std::int64_t moe_device) const {
  return {tokens_.begin() + row_begin_[at(moe_device)],
          tokens_.begin() + row_begin_[at(moe_device + 1)]};
}

std::int64_t Routing::num_pairs(std::int64_t moe_device) const {
  return first_pair(moe_device + 1) - first_pair(moe_device);
}

std::int64_t Routing::num_pairs_of_place(std::int64_t place) const {
  return pair_begin_[at(place + 1)] - pair_begin_[at(place)];
}

const std::int32_t* Routing::row_idx(std::int64_t moe_device) const {
  return row_idx_.data() + first_pair(moe_device);
}

const float* Routing::weights(std::int64_t moe_device) const {
  return weights_.data() + first_pair(moe_device);
}

std::int64_t Routing::num_replies(std::int64_t moe_device) const {
  return combine_ == Combine::reduced ? std::ssize(tokens(moe_device)) : num_pairs(moe_device);
}

std::int64_t Routing::reply_offset(std::int64_t moe_device) const {
  return combine_ == Combine::reduced ? row_begin_[at(moe_device)] : first_pair(moe_device);
}

}  // namespace asap
