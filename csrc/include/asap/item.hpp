// One unit of work of a MoE device, in private memory that is used again and again.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "asap/rows.hpp"
#include "asap/shared_buffer.hpp"

namespace asap {

// What one TP rank sent, and how its results go back.
struct RankPart {
  std::int64_t num_rows = 0;
  std::int64_t num_pairs = 0;
  std::int64_t reply_offset = 0;
  std::vector<std::int32_t> num_rows_E;   // pairs per local expert
  std::vector<std::int32_t> first_row_E;  // position in Item::rows of the first of them
  std::vector<std::int32_t> row_idx;      // per pair, into the rank's rows
  std::vector<std::int32_t> term_begin;   // per row of the rank, for sum_rows
  std::vector<Term> terms;

  // Set `terms` and `term_begin` from the rest and the weight of each pair.
  void set_terms(const float* weights);
};

// One layer of one batch: the rows of all T ranks, grouped by local expert, then by rank.
struct Item {
  std::int64_t dp_group = 0;
  std::int64_t slot = 0;
  std::int64_t layer = 0;
  std::uint64_t epoch = 0;
  std::uint64_t sequence = 0;
  double found_s = 0;           // when its message was found complete, on the monotonic clock
  std::int64_t num_tokens = 0;  // rows that were sent, whatever number of experts each is for
  std::int64_t num_rows = 0;    // R
  std::vector<std::int32_t> num_rows_E;  // per local expert; they sum to R
  Rows rows{};
  std::vector<RankPart> ranks;
  Mapping memory;

  // Make `rows` a matrix of num_rows; earlier contents are lost.
  void resize(RowType type, std::int64_t hidden);
};

// Items return here when their last user lets go, so that a steady load faults no new pages.
// It holds as many as were ever in use at once.
class ItemPool : public std::enable_shared_from_this<ItemPool> {
 public:
  std::shared_ptr<Item> take();

 private:
  void give_back(std::unique_ptr<Item> item);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Item>> free_;
};

}  // namespace asap
