// Random whole instances for the programs beside this file: shapes, batches whose sums are exact in
// every type, and the comms of all ranks and devices over real shared buffers.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "asap/attention_comm.hpp"
#include "asap/moe_comm.hpp"

namespace asap::instances {

constexpr std::uint64_t kEpoch = 7;
using Random = std::mt19937_64;

inline std::int64_t pick_in(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

inline bool one_in(Random& random, std::int64_t n) { return pick_in(random, 1, n) == 1; }

inline std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

inline std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

struct Shape {
  Layout layout;
  RowType row_type;
  RowType compute;
  Combine combine;
  std::vector<std::int32_t> expert_of_place;
};

// A second reading of layout.py, so that these programs need no Python.
inline void lay_out(Layout& l, const Shape& shape) {
  l.row_bytes = l.hidden * element_bytes(shape.row_type);
  l.max_local_experts = (l.num_places + l.moe_devices - 1) / l.moe_devices;
  l.slot_pairs = l.slot_rows * std::min(l.top_k, l.max_local_experts);
  const bool reduced = shape.combine == Combine::reduced;
  l.slot_results = l.slot_rows * (reduced ? std::min(l.top_k, l.moe_devices) : l.top_k);
  l.moe_credits = kFlagBytes;
  l.moe_bitmaps = 2 * kFlagBytes;
  l.moe_regions = l.moe_bitmaps + l.dp_groups * kNumSlots * kFlagBytes;
  l.header_bytes = round_up(kHeaderBytes + 4 * l.max_local_experts, kHeaderBytes);
  l.region_row_idx = round_up(kNumSlots * l.header_bytes, kFlagBytes);
  l.region_weights = round_up(l.region_row_idx + kNumSlots * l.slot_pairs * 4, kFlagBytes);
  l.region_rows = round_up(l.region_weights + kNumSlots * l.slot_pairs * 4, kFlagBytes);
  l.region_bytes = round_up(l.region_rows + kNumSlots * l.slot_rows * l.row_bytes, kFlagBytes);
  l.moe_bytes = l.moe_regions + l.dp_groups * l.tp * l.region_bytes;
  l.attention_bitmaps = kFlagBytes;
  l.bitmap_words = (l.moe_devices + kWordBits - 1) / kWordBits;
  l.attention_headers = kFlagBytes + kNumSlots * l.bitmap_words * kFlagBytes;
  l.attention_results =
      round_up(l.attention_headers + kNumSlots * l.moe_devices * kHeaderBytes, kFlagBytes);
  l.attention_bytes = l.attention_results + kNumSlots * l.slot_results * l.row_bytes;
}

inline Shape random_shape(Random& random) {
  Shape shape{};
  Layout& l = shape.layout;
  l.dp_groups = pick_in(random, 1, 3);
  l.tp = pick_in(random, 1, 3);
  l.moe_devices = pick_in(random, 1, 5);
  l.num_layers = 24;
  l.num_experts = l.moe_devices + pick_in(random, 0, 4);
  // Experts in turn, so that no device has one twice; beyond the first N places they are redundant.
  l.num_places = l.num_experts + pick_in(random, 0, (l.moe_devices - 1) * l.num_experts);
  for (std::int64_t place = 0; place < l.num_places; ++place) {
    shape.expert_of_place.push_back(static_cast<std::int32_t>(place % l.num_experts));
  }
  l.top_k = pick_in(random, 1, std::min<std::int64_t>(4, l.num_experts));
  l.hidden = pick_in(random, 1, 40);
  l.slot_rows = 16;
  shape.row_type = static_cast<RowType>(pick_in(random, 0, 2));
  shape.compute = one_in(random, 2) ? RowType::float32 : shape.row_type;
  shape.combine = static_cast<Combine>(pick_in(random, 0, 1));
  lay_out(l, shape);
  return shape;
}

// A float32 matrix, or one in the row type.
struct Matrix {
  Matrix(RowType type, std::int64_t num_rows, std::int64_t hidden)
      : bytes(at(num_rows * hidden * element_bytes(type)) + 1), rows{bytes.data(), type, hidden} {}
  std::vector<std::byte> bytes;
  Rows rows;
};

inline float value_at(const Rows& rows, std::int64_t row, std::int64_t h) {
  float value = 0;
  const Rows element{rows.row(row) + h * element_bytes(rows.type), rows.type, 1};
  copy_rows({reinterpret_cast<std::byte*>(&value), RowType::float32, 1}, element, 1, Store::cached);
  return value;
}

// rows[row] = factor * from[row]; small integers, so that every sum is exact in every type.
inline void scale_row(const Rows& rows, const Rows& from, std::int64_t row, float factor) {
  const Term term{static_cast<std::int32_t>(row), factor};
  const std::int32_t begin[] = {0, 1};
  sum_rows({rows.row(row), rows.type, rows.hidden}, from, begin, {&term, 1});
}

// What MoE device e makes of an item: expert x multiplies by x + 1.
inline Matrix computed(const Shape& shape, const Item& item, std::int64_t e) {
  Matrix results(shape.compute, item.num_rows, shape.layout.hidden);
  std::int64_t row = 0;
  for (std::size_t x = 0; x < item.num_rows_E.size(); ++x) {
    const auto place = first_place(shape.layout, e) + static_cast<std::int64_t>(x);
    const std::int32_t expert = shape.expert_of_place[at(place)];
    for (std::int32_t n = 0; n < item.num_rows_E[x]; ++n, ++row) {
      scale_row(results.rows, item.rows, row, static_cast<float>(expert + 1));
    }
  }
  return results;
}

struct Batch {
  Batch(const Shape& shape, Random& random, std::int64_t num_tokens)
      : num_tokens(num_tokens), hidden(RowType::float32, num_tokens, shape.layout.hidden) {
    auto* values = reinterpret_cast<float*>(hidden.bytes.data());
    std::generate_n(values, num_tokens * shape.layout.hidden,
                    [&] { return static_cast<float>(pick_in(random, -1, 1)); });
    std::vector<std::int32_t> experts(at(shape.layout.num_experts));
    for (std::size_t x = 0; x < experts.size(); ++x) experts[x] = static_cast<std::int32_t>(x);
    for (std::int64_t token = 0; token < num_tokens; ++token) {
      std::shuffle(experts.begin(), experts.end(), random);
      float factor = 0;
      for (std::int64_t k = 0; k < shape.layout.top_k; ++k) {
        ids.push_back(experts[at(k)]);
        weights.push_back(static_cast<float>(pick_in(random, 1, 2)));
        factor += weights.back() * static_cast<float>(ids.back() + 1);
      }
      factors.push_back(factor);
    }
  }

  std::int64_t num_tokens;
  Matrix hidden;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  std::vector<float> factors;  // what each row comes back multiplied by
};

inline void send(AttentionComm& comm, std::int64_t slot, std::int64_t layer, const Batch& batch,
                 double timeout_s) {
  comm.async_dispatch_send(slot, layer, batch.hidden.rows,
                           {batch.num_tokens, batch.ids.data(), batch.weights.data()}, timeout_s);
}

// The first wrong element of what came back, in words; empty if all are right.
inline std::string first_wrong(const Batch& batch, const Rows& out) {
  for (std::int64_t token = 0; token < batch.num_tokens; ++token) {
    for (std::int64_t h = 0; h < out.hidden; ++h) {
      const float expected = batch.factors[at(token)] * value_at(batch.hidden.rows, token, h);
      const float found = value_at(out, token, h);
      if (found != expected) {
        return text("token ", token, " element ", h, ": ") + std::to_string(found) + ", expected " +
               std::to_string(expected);
      }
    }
  }
  return "";
}

class Stream {
 public:
  void put(std::shared_ptr<Item> item) {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    changed_.notify_one();
  }
  // Null at the end.
  std::shared_ptr<Item> get() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !items_.empty(); });
    auto item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Item>> items_;
};

using Create = std::shared_ptr<SharedBuffer> (*)(const std::string&, std::int64_t);

// Every buffer and comm of an instance. Nobody but its user changes it, at the moments it chooses.
struct World {
  explicit World(const Shape& shape, Create create = SharedBuffer::create)
      : shape(shape), create(create), epochs(at(shape.layout.dp_groups), kEpoch) {
    const Layout& l = shape.layout;
    ranks.resize(at(l.dp_groups));
    for (std::int64_t e = 0; e < l.moe_devices; ++e) {
      moe_buffers.push_back(create("moe", l.moe_bytes));
    }
    for (std::int64_t i = 0; i < l.dp_groups; ++i) begin_group(i);
    for (std::int64_t e = 0; e < l.moe_devices; ++e) devices.push_back(device(e));
  }

  std::unique_ptr<MoEComm> device(std::int64_t e) const {
    return std::make_unique<MoEComm>(shape.layout, moe_buffers[at(e)], attention_buffers, e, epochs,
                                     RowTypes{shape.row_type, shape.compute}, shape.combine);
  }

  std::unique_ptr<AttentionComm> rank(std::int64_t i, std::int64_t j, std::uint64_t epoch) const {
    return std::make_unique<AttentionComm>(shape.layout, attention_buffers[at(i)][at(j)],
                                           moe_buffers, shape.expert_of_place, RankId{i, j, epoch},
                                           shape.row_type, shape.combine);
  }

  // Device e is dead and nobody uses it any more.
  void restart_device(std::int64_t e) {
    moe_buffers[at(e)] = create("moe", shape.layout.moe_bytes);
    devices[at(e)] = device(e);
    for (auto& group : ranks) {
      for (auto& rank : group) rank->replace_device(e, moe_buffers[at(e)]);
    }
  }

  // All ranks of group i are dead; its successor may send when this returns.
  void restart_group(std::int64_t i) {
    ++epochs[at(i)];
    begin_group(i);
    for (auto& each : devices) each->replace_group(i, attention_buffers[at(i)], epochs[at(i)]);
  }

  // An incarnation that died after one of its ranks had sent.
  void leave_stale_message(Random& random, double timeout_s) const {
    const auto dead = rank(0, 0, kEpoch - 1);
    send(*dead, 0, 0, Batch(shape, random, pick_in(random, 0, shape.layout.slot_rows)), timeout_s);
  }

  Shape shape;
  Create create;
  std::vector<std::uint64_t> epochs;  // by group
  std::vector<std::shared_ptr<SharedBuffer>> moe_buffers;
  std::vector<MoEComm::Buffers> attention_buffers{at(shape.layout.dp_groups)};
  std::vector<std::vector<std::unique_ptr<AttentionComm>>> ranks;  // by group
  std::vector<std::unique_ptr<MoEComm>> devices;

 private:
  void begin_group(std::int64_t i) {
    attention_buffers[at(i)].clear();
    ranks[at(i)].clear();
    for (std::int64_t j = 0; j < shape.layout.tp; ++j) {
      attention_buffers[at(i)].push_back(create("attention", shape.layout.attention_bytes));
    }
    for (std::int64_t j = 0; j < shape.layout.tp; ++j) {
      ranks[at(i)].push_back(rank(i, j, epochs[at(i)]));
    }
  }
};

}  // namespace asap::instances
