// A vandal among the peers, for AddressSanitizer: every word that carries group 0's messages, flags
// and replies, and every doorbell, is overwritten at random while all ranks and devices run. Group
// 0 may get nothing, or nonsense; it is replaced again and again. Nothing is read or written
// outside a buffer, devices serve on, and every sum of the other groups is right. Usage: corrupt
// SECONDS SEED. Exits 1 at the first wrong sum.
#include <sanitizer/asan_interface.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <thread>

#include "instances.hpp"

namespace asap::instances {
namespace {

constexpr double kPatience = 60;  // seconds, of who is honest
constexpr double kShort = 0.02;   // of the group whose words are overwritten
constexpr std::int64_t kGuardBytes = 1 << 16;
constexpr std::int64_t kDoorbellEvery = 50;  // a lost ring costs 50 ms

struct Counts {
  std::atomic<std::int64_t> overwritten{0};
  std::atomic<std::int64_t> refused{0};
  std::int64_t instances = 0;
  std::int64_t incarnations = 0;
};

// A buffer behind whose end nothing may be touched.
std::shared_ptr<SharedBuffer> guarded(const std::string& name, std::int64_t num_bytes) {
  const auto buffer = SharedBuffer::create(name, num_bytes + kGuardBytes);
  std::byte* const end = buffer->bytes() + num_bytes;
  ASAN_POISON_MEMORY_REGION(end, kGuardBytes);
  return {buffer.get(), [buffer, end](SharedBuffer*) {  // which goes with this deleter, after it
            ASAN_UNPOISON_MEMORY_REGION(end, kGuardBytes);
          }};
}

// Some words in a row.
struct Words {
  void* begin;
  std::int64_t count;
};

void add_message(std::vector<Words>& out, const Layout& l, const Message& message) {
  const auto header = static_cast<std::int64_t>(sizeof(Header) / 4);
  for (int n = 0; n < 4; ++n) out.push_back({message.header, header});  // what is checked, often
  out.push_back({message.num_rows_E, l.max_local_experts});
  out.push_back({message.row_idx, l.slot_pairs});
  out.push_back({message.weights, l.slot_pairs});
  out.push_back({message.rows, l.slot_rows * l.row_bytes / 4});
}

// All that belongs to group 0, and separately the doorbells of everybody it deals with.
struct Targets {
  explicit Targets(const World& world) {
    const Layout& l = world.shape.layout;
    for (const auto& buffer : world.moe_buffers) {
      const MoEView view(l, buffer->bytes());
      doorbells.push_back({&view.arrivals(), 2});
      doorbells.push_back({&view.credits(), 2});
      for (std::int64_t slot = 0; slot < kNumSlots; ++slot) {
        words.push_back({&view.word(0, slot), 2});
        for (std::int64_t j = 0; j < l.tp; ++j) add_message(words, l, view.message(0, j, slot));
      }
    }
    for (const auto& buffer : world.attention_buffers[0]) {
      const AttentionView view(l, buffer->bytes());
      doorbells.push_back({&view.replies(), 2});
      for (std::int64_t slot = 0; slot < kNumSlots; ++slot) {
        words.push_back({view.results(slot), l.slot_results * l.row_bytes / 4});
        for (std::int64_t e = 0; e < l.moe_devices; ++e) {
          words.push_back({&view.word(slot, e), 2});
          words.push_back({&view.header(slot, e), sizeof(Header) / 4});
        }
      }
    }
  }
  std::vector<Words> words;
  std::vector<Words> doorbells;
};

std::uint32_t nonsense(Random& random, std::uint32_t was, const Layout& l) {
  using Limits = std::numeric_limits<std::int32_t>;
  const std::int64_t edges[] = {0,
                                1,
                                -1,
                                Limits::max(),
                                Limits::min(),
                                l.slot_rows,
                                l.slot_pairs,
                                l.slot_results,
                                l.num_layers,
                                kNumSlots * l.slot_rows};
  switch (pick_in(random, 0, 3)) {
    case 0:
      return was ^ (1U << pick_in(random, 0, 31));
    case 1:
      return static_cast<std::uint32_t>(random());
    default:
      return static_cast<std::uint32_t>(edges[pick_in(random, 0, std::ssize(edges) - 1)] +
                                        pick_in(random, -1, 1));
  }
}

void overwrite(Random& random, const Targets& targets, const Layout& l) {
  const auto& kind = one_in(random, kDoorbellEvery) ? targets.doorbells : targets.words;
  const Words words = kind[at(pick_in(random, 0, std::ssize(kind) - 1))];
  if (words.count == 0) return;
  auto* const word = static_cast<std::uint32_t*>(words.begin) + pick_in(random, 0, words.count - 1);
  const std::atomic_ref shared(*word);
  shared.store(nonsense(random, shared.load(std::memory_order_relaxed), l),
               std::memory_order_relaxed);
}

class Instance {
 public:
  Instance(Random& random, Counts& counts)
      : counts_(counts), world_(shape_of(random), guarded), seed_(random()) {
    const Layout& l = world_.shape.layout;
    for (std::int64_t e = 0; e < l.moe_devices; ++e) devices_.emplace_back([this, e] { serve(e); });
    for (std::int64_t i = 1; i < l.dp_groups; ++i) {
      for (std::int64_t j = 0; j < l.tp; ++j) honest_.emplace_back([this, i, j] { attend(i, j); });
    }
  }
  ~Instance() {
    for (auto& device : world_.devices) device->abort();
    for (auto& device : devices_) device.join();
  }

  // Until every honest rank has had all its layers.
  void run() {
    std::thread vandal([this] { vandalise(); });
    std::thread waiting([this] {
      for (auto& rank : honest_) rank.join();
      is_over_ = true;
    });
    while (!is_over_) live();
    waiting.join();
    vandal.join();
  }

 private:
  static Shape shape_of(Random& random) {
    Shape shape = random_shape(random);
    shape.layout.dp_groups = pick_in(random, 2, 3);
    lay_out(shape.layout, shape);
    return shape;
  }

  void vandalise() {
    Random random(seed_);
    while (!is_over_) {
      {
        const std::lock_guard lock(mutex_);
        const Targets targets(world_);
        for (int n = 0; n < 64; ++n) overwrite(random, targets, world_.shape.layout);
      }
      counts_.overwritten += 64;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  // As a device of the product does: what is corrupt is dropped, what does not come is not waited
  // for (backends/host.py).
  void serve(std::int64_t e) {
    MoEComm& comm = *world_.devices[at(e)];
    while (true) {
      try {
        const auto item = comm.async_dispatch_recv(kShort, Pick::round_robin);
        comm.async_combine_send(*item, computed(world_.shape, *item, e).rows);
      } catch (const CorruptMessage&) {
        ++counts_.refused;
      } catch (const PeerTimeout&) {
      } catch (const Closed&) {
        return;
      }
    }
  }

  // An honest rank: every sum must be right.
  void attend(std::int64_t i, std::int64_t j) {
    AttentionComm& comm = *world_.ranks[at(i)][at(j)];
    Random random(seed_ + static_cast<std::uint64_t>(i * kWordBits + j));
    for (std::int64_t layer = 0; layer < world_.shape.layout.num_layers; ++layer) {
      const Batch batch(world_.shape, random, pick_in(random, 0, world_.shape.layout.slot_rows));
      send(comm, layer % kNumSlots, layer, batch, kPatience);
      Matrix out(RowType::float32, batch.num_tokens, batch.hidden.rows.hidden);
      comm.async_combine_recv(layer % kNumSlots, out.rows, kPatience);
      if (const auto wrong = first_wrong(batch, out.rows); !wrong.empty()) {
        std::fprintf(stderr, "group %ld: %s\n", static_cast<long>(i), wrong.c_str());
        std::exit(1);
      }
    }
  }

  // One incarnation of group 0, until one of its ranks gives up.
  void live() {
    ++counts_.incarnations;
    std::vector<std::thread> threads;
    for (auto& rank : world_.ranks[0]) threads.emplace_back([&] { suffer(*rank); });
    for (auto& thread : threads) thread.join();
    const std::lock_guard lock(mutex_);
    world_.restart_group(0);
  }

  // A rank of group 0: its own words may change under it, and its sums are not looked at.
  void suffer(AttentionComm& comm) {
    Random random(seed_);
    try {
      for (std::int64_t layer = 0; !is_over_;
           layer = (layer + 1) % world_.shape.layout.num_layers) {
        const std::int64_t slot = layer % kNumSlots;
        const std::int64_t room = (slot == 0 ? kNumSlots : 1) * world_.shape.layout.slot_rows;
        const Batch batch(world_.shape, random, pick_in(random, 0, room));
        send(comm, slot, layer, batch, kShort);
        Matrix out(RowType::float32, batch.num_tokens, batch.hidden.rows.hidden);
        comm.async_combine_recv(slot, out.rows, kShort);
      }
    } catch (const CorruptMessage&) {
      ++counts_.refused;
    } catch (const PeerTimeout&) {
    }
  }

  Counts& counts_;
  World world_;
  const std::uint64_t seed_;
  std::mutex mutex_;  // of group 0's buffers
  std::atomic<bool> is_over_{false};
  std::vector<std::thread> devices_;
  std::vector<std::thread> honest_;
};

}  // namespace
}  // namespace asap::instances

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 3;
  asap::instances::Random random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0);
  const asap::Deadline deadline(seconds);
  asap::instances::Counts counts;
  for (; deadline.left_s() > 0; ++counts.instances) {
    asap::instances::Instance(random, counts).run();
  }
  std::printf("%ld instances, %ld incarnations, %ld words, %ld refused\n",
              static_cast<long>(counts.instances), static_cast<long>(counts.incarnations),
              static_cast<long>(counts.overwritten.load()),
              static_cast<long>(counts.refused.load()));
}
