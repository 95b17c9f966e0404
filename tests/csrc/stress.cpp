// Whole instances as threads, for ThreadSanitizer and AddressSanitizer: random shapes and sizes
// (zero and solo included), slow devices, leftovers of a dead epoch, aborts in the middle, a MoE
// device that dies and comes back.
// Usage: stress SECONDS SEED. Exits 1 at the first wrong sum.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "asap/attention_comm.hpp"
#include "asap/moe_comm.hpp"

namespace asap {
namespace {

constexpr double kPatience = 60;  // seconds; a sanitizer on a busy machine is slow
constexpr std::uint64_t kEpoch = 7;
using Random = std::mt19937_64;

std::int64_t pick_in(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct Shape {
  Layout layout;
  RowType row_type;
  RowType compute;
  Combine combine;
};

// A second reading of layout.py, so that this program needs no Python.
void lay_out(Layout& l, const Shape& shape) {
  l.row_bytes = l.hidden * element_bytes(shape.row_type);
  l.max_local_experts = (l.num_experts + l.moe_devices - 1) / l.moe_devices;
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

Shape random_shape(Random& random) {
  Shape shape{};
  Layout& l = shape.layout;
  l.dp_groups = pick_in(random, 1, 3);
  l.tp = pick_in(random, 1, 3);
  l.moe_devices = pick_in(random, 1, 5);
  l.num_layers = 24;
  l.num_experts = l.moe_devices + pick_in(random, 0, 4);
  l.top_k = pick_in(random, 1, std::min<std::int64_t>(4, l.num_experts));
  l.hidden = pick_in(random, 1, 40);
  l.slot_rows = 16;
  shape.row_type = static_cast<RowType>(pick_in(random, 0, 2));
  shape.compute = pick_in(random, 0, 1) == 0 ? RowType::float32 : shape.row_type;
  shape.combine = static_cast<Combine>(pick_in(random, 0, 1));
  lay_out(l, shape);
  return shape;
}

// A float32 matrix, or one in the row type.
struct Matrix {
  Matrix(RowType type, std::int64_t num_rows, std::int64_t hidden)
      : bytes(static_cast<std::size_t>(num_rows * hidden * element_bytes(type)) + 1),
        rows{bytes.data(), type, hidden} {}
  std::vector<std::byte> bytes;
  Rows rows;
};

float value_at(const Rows& rows, std::int64_t row, std::int64_t h) {
  float value = 0;
  const Rows element{rows.row(row) + h * element_bytes(rows.type), rows.type, 1};
  copy_rows({reinterpret_cast<std::byte*>(&value), RowType::float32, 1}, element, 1, Store::cached);
  return value;
}

// rows[row] = factor * from[row]; small integers, so that every sum is exact in every type.
void scale_row(const Rows& rows, const Rows& from, std::int64_t row, float factor) {
  const Term term{static_cast<std::int32_t>(row), factor};
  const std::int32_t begin[] = {0, 1};
  sum_rows({rows.row(row), rows.type, rows.hidden}, from, begin, {&term, 1});
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

void receive(MoEComm& comm, Stream& received, bool is_slow) {
  Random random(1);
  try {
    while (true) {
      const Pick pick = static_cast<Pick>(pick_in(random, 0, 1));
      received.put(comm.async_dispatch_recv(kPatience, pick));
      if (is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const Closed&) {
    received.put(nullptr);
  }
}

// Expert x multiplies by x + 1. What a dead device has taken it answers no more.
void compute_and_send(MoEComm& comm, Stream& received, const Shape& shape, std::int64_t e,
                      const std::atomic<bool>& is_dead) {
  while (const auto item = received.get()) {
    if (is_dead.load(std::memory_order_relaxed)) continue;
    Matrix results(shape.compute, item->num_rows, shape.layout.hidden);
    std::int64_t row = 0;
    for (std::size_t x = 0; x < item->num_rows_E.size(); ++x) {
      const auto expert = first_expert(shape.layout, e) + static_cast<std::int64_t>(x);
      for (std::int32_t n = 0; n < item->num_rows_E[x]; ++n, ++row) {
        scale_row(results.rows, item->rows, row, static_cast<float>(expert + 1));
      }
    }
    comm.async_combine_send(*item, results.rows);
  }
}

struct Batch {
  Batch(const Shape& shape, Random& random, std::int64_t num_tokens)
      : num_tokens(num_tokens), hidden(RowType::float32, num_tokens, shape.layout.hidden) {
    auto* values = reinterpret_cast<float*>(hidden.bytes.data());
    std::generate_n(values, num_tokens * shape.layout.hidden,
                    [&] { return static_cast<float>(pick_in(random, -1, 1)); });
    std::vector<std::int32_t> experts(static_cast<std::size_t>(shape.layout.num_experts));
    for (std::size_t x = 0; x < experts.size(); ++x) experts[x] = static_cast<std::int32_t>(x);
    for (std::int64_t token = 0; token < num_tokens; ++token) {
      std::shuffle(experts.begin(), experts.end(), random);
      float factor = 0;
      for (std::int64_t k = 0; k < shape.layout.top_k; ++k) {
        ids.push_back(experts[static_cast<std::size_t>(k)]);
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

void send(AttentionComm& comm, std::int64_t slot, std::int64_t layer, const Batch& batch) {
  comm.async_dispatch_send(slot, layer, batch.hidden.rows,
                           {batch.num_tokens, batch.ids.data(), batch.weights.data()}, kPatience);
}

void receive_and_check(AttentionComm& comm, std::int64_t slot, const Batch& batch) {
  const std::int64_t hidden = batch.hidden.rows.hidden;
  Matrix out(RowType::float32, batch.num_tokens, hidden);
  comm.async_combine_recv(slot, out.rows, kPatience);
  for (std::int64_t token = 0; token < batch.num_tokens; ++token) {
    for (std::int64_t h = 0; h < hidden; ++h) {
      const float expected =
          batch.factors[static_cast<std::size_t>(token)] * value_at(batch.hidden.rows, token, h);
      if (value_at(out.rows, token, h) == expected) continue;
      std::fprintf(stderr, "token %ld element %ld: %g, expected %g\n", static_cast<long>(token),
                   static_cast<long>(h), value_at(out.rows, token, h), expected);
      std::exit(1);
    }
  }
}

// Ranks of a group draw the same slots and solo turns from `shared`, their rows from `own`.
void attend(AttentionComm& comm, const Shape& shape, Random shared, Random own) {
  const std::int64_t room = shape.layout.slot_rows;
  try {
    for (std::int64_t layer = 0; layer < shape.layout.num_layers; ++layer) {
      if (pick_in(shared, 0, 3) == 0) {
        const Batch solo(shape, own, pick_in(own, room + 1, 2 * room));
        send(comm, 0, layer, solo);
        receive_and_check(comm, 0, solo);
        continue;
      }
      const Batch batches[] = {{shape, own, pick_in(own, 0, room)},
                               {shape, own, pick_in(own, 0, 3) == 0 ? 0 : room}};
      const std::int64_t first = pick_in(shared, 0, 1);
      send(comm, first, layer, batches[0]);
      send(comm, 1 - first, layer, batches[1]);
      receive_and_check(comm, first, batches[0]);
      receive_and_check(comm, 1 - first, batches[1]);
    }
  } catch (const Closed&) {
  }
}

struct World {
  explicit World(const Shape& shape) : shape(shape) {
    const Layout& l = shape.layout;
    for (std::int64_t e = 0; e < l.moe_devices; ++e) {
      moe_buffers.push_back(SharedBuffer::create("stress-moe", l.moe_bytes));
    }
    for (std::int64_t i = 0; i < l.dp_groups; ++i) {
      for (std::int64_t j = 0; j < l.tp; ++j) {
        attention_buffers[static_cast<std::size_t>(i)].push_back(
            SharedBuffer::create("stress-attention", l.attention_bytes));
        ranks.push_back(rank(i, j, kEpoch));
      }
    }
    for (std::int64_t e = 0; e < l.moe_devices; ++e) devices.push_back(device(e));
  }

  std::unique_ptr<MoEComm> device(std::int64_t e) const {
    const std::vector<std::uint64_t> epochs(static_cast<std::size_t>(shape.layout.dp_groups),
                                            kEpoch);
    return std::make_unique<MoEComm>(shape.layout, moe_buffers[static_cast<std::size_t>(e)],
                                     attention_buffers, e, epochs,
                                     RowTypes{shape.row_type, shape.compute}, shape.combine);
  }

  // Nobody uses device 0 any more.
  void restart_device() {
    moe_buffers[0] = SharedBuffer::create("stress-moe", shape.layout.moe_bytes);
    devices[0] = device(0);
    for (auto& rank : ranks) rank->replace_device(0, moe_buffers[0]);
  }

  std::unique_ptr<AttentionComm> rank(std::int64_t i, std::int64_t j, std::uint64_t epoch) const {
    return std::make_unique<AttentionComm>(
        shape.layout, attention_buffers[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)],
        moe_buffers, RankId{i, j, epoch}, shape.row_type, shape.combine);
  }

  // An incarnation that died after one of its ranks had sent.
  void leave_stale_message(Random& random) const {
    const auto dead = rank(0, 0, kEpoch - 1);
    send(*dead, 0, 0, Batch(shape, random, pick_in(random, 0, shape.layout.slot_rows)));
  }

  Shape shape;
  std::vector<std::shared_ptr<SharedBuffer>> moe_buffers;
  std::vector<MoEComm::Buffers> attention_buffers{static_cast<std::size_t>(shape.layout.dp_groups)};
  std::vector<std::unique_ptr<AttentionComm>> ranks;
  std::vector<std::unique_ptr<MoEComm>> devices;
};

// The streams of device e; their end is its death.
class Running {
 public:
  Running(World& world, std::size_t e, bool is_slow)
      : comm_(*world.devices[e]),
        receiver_([this, is_slow] { receive(comm_, stream_, is_slow); }),
        sender_([this, &world, e] {
          compute_and_send(comm_, stream_, world.shape, static_cast<std::int64_t>(e), is_dead_);
        }) {}
  ~Running() {
    is_dead_ = true;
    comm_.abort();
    receiver_.join();
    sender_.join();
  }

 private:
  MoEComm& comm_;
  Stream stream_;
  std::atomic<bool> is_dead_{false};
  std::thread receiver_;
  std::thread sender_;
};

void run_world(Random& random) {
  World world(random_shape(random));
  const Shape& shape = world.shape;
  if (pick_in(random, 0, 1) == 0) world.leave_stale_message(random);

  std::vector<std::unique_ptr<Running>> running;
  for (std::size_t e = 0; e < world.devices.size(); ++e) {
    running.push_back(std::make_unique<Running>(world, e, pick_in(random, 0, 3) == 0));
  }
  std::vector<std::thread> rank_threads;
  const auto seed = random();
  for (std::size_t n = 0; n < world.ranks.size(); ++n) {
    const auto group = static_cast<std::uint64_t>(n) / static_cast<std::uint64_t>(shape.layout.tp);
    rank_threads.emplace_back(
        [&, n, group] { attend(*world.ranks[n], shape, Random(seed + group), Random(~seed - n)); });
  }
  if (pick_in(random, 0, 4) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(pick_in(random, 0, 5)));
    for (auto& rank : world.ranks) rank->abort();
  }
  // Ranks here have no collectives, without which T > 1 cannot restart (docs/verify.md).
  if (shape.layout.tp == 1 && pick_in(random, 0, 1) == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(pick_in(random, 0, 3000)));
    running[0].reset();
    world.restart_device();
    running[0] = std::make_unique<Running>(world, 0, false);
  }
  for (auto& thread : rank_threads) thread.join();
}

}  // namespace
}  // namespace asap

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 3;
  asap::Random random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0);
  const asap::Deadline deadline(seconds);
  int num_worlds = 0;
  for (; deadline.left_s() > 0; ++num_worlds) asap::run_world(random);
  std::printf("%d instances\n", num_worlds);
}
