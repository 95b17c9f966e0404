// Where each token of one message goes and comes back from: a counting sort by place.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "asap/layout.hpp"
#include "asap/placement.hpp"
#include "asap/rows.hpp"

namespace asap {

enum class Combine { reduced, per_expert };

// By its name in spec.py. Throws std::invalid_argument.
Combine combine_of(std::string_view name);

// What the router chose for S tokens: expert_ids and weights are [S, top_k].
struct Choices {
  std::int64_t num_tokens;
  const std::int32_t* expert_ids;
  const float* weights;
};

// Everything is ordered by device; a device's pairs are ordered by place, then by token. Of an
// expert's places a token goes to one on a device that it goes to anyway, for then its row travels
// once less; else, and among several of those, to the device with the fewest pairs of this message
// so far; of equals to the first.
// The memory is kept from one message to the next.
class Routing {
 public:
  Routing(const Layout& layout, const Placement& placement, Combine combine);

  // Throws std::invalid_argument for an expert out of range or chosen twice by a token.
  void plan(const Choices& choices);

  std::int64_t num_tokens() const { return std::ssize(term_begin_) - 1; }
  std::int64_t num_replies() const {
    return combine_ == Combine::reduced ? row_begin_.back() : pair_begin_.back();
  }

  // Tokens with an expert on the device: its rows.
  std::span<const std::int32_t> tokens(std::int64_t moe_device) const;
  std::int64_t num_pairs(std::int64_t moe_device) const;
  std::int64_t num_pairs_of_place(std::int64_t place) const;
  // Per pair of the device: its row, and the weight.
  const std::int32_t* row_idx(std::int64_t moe_device) const;
  const float* weights(std::int64_t moe_device) const;

  // Rows the device replies with, and where its first one goes.
  std::int64_t num_replies(std::int64_t moe_device) const;
  std::int64_t reply_offset(std::int64_t moe_device) const;
  // Which reply rows make up each token, for sum_rows.
  std::span<const std::int32_t> term_begin() const { return term_begin_; }
  std::span<const Term> terms() const { return terms_; }

 private:
  void count(const Choices& choices);
  void check(std::int32_t token, const std::int32_t* expert_ids);
  std::int32_t best_place(std::int32_t token, std::int32_t expert) const;
  void take(std::int32_t token, std::int32_t place);
  void fill(const Choices& choices);
  std::int64_t first_pair(std::int64_t moe_device) const;

  const Layout* layout_;
  const Placement* placement_;
  Combine combine_;
  std::vector<std::int32_t> device_of_;    // per place
  std::vector<std::int32_t> expert_seen_;  // per expert: the last token that chose it
  std::vector<std::int32_t> device_seen_;
  std::vector<std::int32_t> load_;    // per device: pairs of this message so far
  std::vector<std::int32_t> places_;  // [S, top_k]
  std::vector<std::int32_t> next_pair_;
  std::vector<std::int32_t> next_row_;

  std::vector<std::int32_t> row_begin_;   // per device, E + 1
  std::vector<std::int32_t> pair_begin_;  // per place, P + 1
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> row_idx_;
  std::vector<float> weights_;
  std::vector<std::int32_t> term_begin_;
  std::vector<Term> terms_;
};

}  // namespace asap
