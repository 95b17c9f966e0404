// Whole instances as threads, for ThreadSanitizer and AddressSanitizer: random shapes and sizes
// (zero and solo included), slow devices, leftovers of a dead epoch, aborts in the middle, MoE
// devices and groups that die and come back under load, one after the other.
// Usage: stress SECONDS SEED. Exits 1 at the first wrong sum.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "instances.hpp"

namespace asap::instances {
namespace {

constexpr double kPatience = 60;  // seconds; a sanitizer on a busy machine is slow

// The collectives of a group, as far as they order its ranks. Who leaves is not waited for.
class Meeting {
 public:
  explicit Meeting(std::int64_t size) : size_(size) {}

  void meet() {
    std::unique_lock lock(mutex_);
    const auto round = round_;
    if (++here_ >= size_) return end_round();
    changed_.wait(lock, [&] { return round_ != round; });
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (here_ >= --size_) end_round();
  }

 private:
  void end_round() {
    here_ = 0;
    ++round_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t size_;
  std::int64_t here_ = 0;
  std::int64_t round_ = 0;
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

void receive_and_check(AttentionComm& comm, std::int64_t slot, const Batch& batch) {
  Matrix out(RowType::float32, batch.num_tokens, batch.hidden.rows.hidden);
  comm.async_combine_recv(slot, out.rows, kPatience);
  if (const auto wrong = first_wrong(batch, out.rows); !wrong.empty()) {
    std::fprintf(stderr, "%s\n", wrong.c_str());
    std::exit(1);
  }
}

// Ranks of a group draw the same slots and solo turns from `shared`, their rows from `own`. They
// meet before each layer, as collectives make them: without that no device could be replaced under
// several ranks (docs/verify.md, rule 5).
void attend(AttentionComm& comm, const Shape& shape, Meeting& meeting, Random shared, Random own) {
  const std::int64_t room = shape.layout.slot_rows;
  try {
    for (std::int64_t layer = 0; layer < shape.layout.num_layers; ++layer) {
      meeting.meet();
      if (one_in(shared, 4)) {
        const Batch solo(shape, own, pick_in(own, room + 1, 2 * room));
        send(comm, 0, layer, solo, kPatience);
        receive_and_check(comm, 0, solo);
        continue;
      }
      const Batch batches[] = {{shape, own, pick_in(own, 0, room)},
                               {shape, own, one_in(own, 4) ? 0 : room}};
      const std::int64_t first = pick_in(shared, 0, 1);
      send(comm, first, layer, batches[0], kPatience);
      meeting.meet();
      send(comm, 1 - first, layer, batches[1], kPatience);
      receive_and_check(comm, first, batches[0]);
      receive_and_check(comm, 1 - first, batches[1]);
    }
  } catch (const Closed&) {
  }
  meeting.leave();
}

// The streams of device e; their end is its death. What a dead device has taken it answers no more.
class Device {
 public:
  Device(World& world, std::int64_t e, bool is_slow)
      : comm_(*world.devices[at(e)]),
        receiver_([this, is_slow] { receive(comm_, stream_, is_slow); }),
        sender_([this, shape = world.shape, e] {
          while (const auto item = stream_.get()) {
            if (is_dead_.load(std::memory_order_relaxed)) continue;
            comm_.async_combine_send(*item, computed(shape, *item, e).rows);
          }
        }) {}
  ~Device() {
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

// The ranks of group i at work; `kill` is their death.
class Group {
 public:
  Group(World& world, std::int64_t i, std::uint64_t seed)
      : ranks_(world.ranks[at(i)]), meeting_(world.shape.layout.tp) {
    for (std::size_t j = 0; j < ranks_.size(); ++j) {
      threads_.emplace_back([this, shape = world.shape, j, seed] {
        attend(*ranks_[j], shape, meeting_, Random(seed), Random(~seed - j));
      });
    }
  }
  ~Group() {
    for (auto& thread : threads_) thread.join();
  }
  void abort() {
    for (auto& rank : ranks_) rank->abort();
  }

 private:
  std::vector<std::unique_ptr<AttentionComm>>& ranks_;
  Meeting meeting_;
  std::vector<std::thread> threads_;
};

class Instance {
 public:
  explicit Instance(Random& random) : random_(random), world_(random_shape(random)) {
    if (one_in(random, 2)) world_.leave_stale_message(random, kPatience);
    for (std::int64_t e = 0; e < layout().moe_devices; ++e) begin_device(e);
    for (std::int64_t i = 0; i < layout().dp_groups; ++i) begin_group(i);
  }
  ~Instance() {
    groups_.clear();  // waits for their last layer
    devices_.clear();
  }

  void abort() {
    for (auto& group : groups_) group->abort();
  }
  void restart_device() {
    const auto e = pick_in(random_, 0, layout().moe_devices - 1);
    devices_[at(e)].reset();
    world_.restart_device(e);
    begin_device(e);
  }
  void restart_group() {
    const auto i = pick_in(random_, 0, layout().dp_groups - 1);
    groups_[at(i)]->abort();
    groups_[at(i)].reset();
    world_.restart_group(i);
    begin_group(i);
  }

 private:
  const Layout& layout() const { return world_.shape.layout; }
  void begin_device(std::int64_t e) {
    devices_.resize(std::max(devices_.size(), at(e + 1)));
    devices_[at(e)] = std::make_unique<Device>(world_, e, one_in(random_, 4));
  }
  void begin_group(std::int64_t i) {
    groups_.resize(std::max(groups_.size(), at(i + 1)));
    groups_[at(i)] = std::make_unique<Group>(world_, i, random_());
  }

  Random& random_;
  World world_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Group>> groups_;
};

void pause(Random& random, std::int64_t most_us) {
  std::this_thread::sleep_for(std::chrono::microseconds(pick_in(random, 0, most_us)));
}

void run_instance(Random& random) {
  Instance instance(random);
  for (auto restarts = pick_in(random, 0, 3); restarts > 0; --restarts) {
    pause(random, 3000);
    one_in(random, 3) ? instance.restart_group() : instance.restart_device();
  }
  if (one_in(random, 5)) {
    pause(random, 5000);
    instance.abort();
  }
}

}  // namespace
}  // namespace asap::instances

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 3;
  asap::instances::Random random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0);
  const asap::Deadline deadline(seconds);
  int num_instances = 0;
  for (; deadline.left_s() > 0; ++num_instances) asap::instances::run_instance(random);
  std::printf("%d instances\n", num_instances);
}
