#include "asap/item.hpp"

#include <bit>
#include <numeric>
#include <utility>

namespace asap {

void RankPart::set_terms(const float* weights) {
  // A counting sort of the pairs by row. term_begin[n + 1] serves as the cursor of row n, so the
  // counts enter two places ahead.
  term_begin.assign(static_cast<std::size_t>(num_rows + 2), 0);
  for (const std::int32_t row : row_idx) ++term_begin[static_cast<std::size_t>(row + 2)];
  std::partial_sum(term_begin.begin(), term_begin.end(), term_begin.begin());
  terms.resize(row_idx.size());
  std::size_t pair = 0;
  for (std::size_t x = 0; x < num_rows_E.size(); ++x) {
    for (std::int32_t n = 0; n < num_rows_E[x]; ++n, ++pair) {
      const std::int32_t term = term_begin[static_cast<std::size_t>(row_idx[pair] + 1)]++;
      terms[static_cast<std::size_t>(term)] = {first_row_E[x] + n, weights[pair]};
    }
  }
  term_begin.pop_back();
}

void Item::resize(RowType type, std::int64_t hidden) {
  rows = {nullptr, type, hidden};
  const std::int64_t num_bytes = num_rows * rows.row_bytes();
  if (num_bytes > memory.num_bytes()) {
    // Powers of two: a growing load maps only logarithmically often.
    memory = Mapping();
    memory = Mapping::anonymous(
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(num_bytes))));
  }
  rows.bytes = memory.bytes();
}

std::shared_ptr<Item> ItemPool::take() {
  std::unique_ptr<Item> item;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      item = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!item) item = std::make_unique<Item>();
  return {item.release(), [pool = shared_from_this()](Item* used) {
            pool->give_back(std::unique_ptr<Item>(used));
          }};
}

void ItemPool::give_back(std::unique_ptr<Item> item) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(item));
}

}  // namespace asap
