#include "core.hpp"

#include <algorithm>
#include <utility>

#include "fiber.hpp"

namespace asap::twin {
namespace {

constexpr const char* kPipeNames[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX"};
constexpr std::size_t kQueueLength = 32;
constexpr std::uint64_t kDelayBits = 14;  // of the longest delay, in steps of the machine
constexpr std::size_t kManyAccesses = 192;

bool meets(const Touch& a, const Touch& b) {
  return a.begin < b.end && b.begin < a.end && (a.writes || b.writes);
}

}  // namespace

Core::Core(Place where, std::uint64_t seed, const GlobalMemory& global, const std::uint64_t& now)
    : place(where),
      random(seed),
      cache(global, random),
      memory(global),
      unified(kUnifiedBytes, std::byte{0xCD}),
      is_set(kUnifiedBytes),
      now_(now) {}

bool Core::is_complete(const Clock& clock) const {
  for (int p = PIPE_V; p < kNumPipes; ++p) {
    if (finished_[p] < clock[p]) return false;
  }
  return true;
}

bool Core::is_idle() const {
  return std::ranges::all_of(queues_, [](const auto& queue) { return queue.empty(); });
}

void Core::check_hazard(pipe_t pipe, const Touch& touch) const {
  for (const Access& access : accesses_) {
    if (pipe == PIPE_S && access.pipe == PIPE_S) continue;
    if (!meets(access.touch, touch) || after_[pipe][access.pipe] >= access.number) continue;
    throw Fault(std::string("unified buffer hazard: ") + kPipeNames[pipe] +
                (touch.writes ? " writes" : " reads") + " what " + kPipeNames[access.pipe] +
                (access.touch.writes ? " writes" : " reads") + ", and nothing orders them");
  }
}

bool Core::is_ordered_everywhere(const Access& access) const {
  return std::ranges::all_of(
      after_, [&](const Clock& clock) { return clock[access.pipe] >= access.number; });
}

void Core::remember(pipe_t pipe, const Touch& touch) {
  if (pipe == PIPE_S) {
    for (Access& access : accesses_) {
      if (access.pipe == PIPE_S && access.touch.begin == touch.begin &&
          access.touch.end == touch.end && access.touch.writes == touch.writes) {
        access.number = issued_[PIPE_S];
        return;
      }
    }
  }
  if (accesses_.size() > kManyAccesses) {
    std::erase_if(accesses_, [&](const Access& access) { return is_ordered_everywhere(access); });
  }
  accesses_.push_back({pipe, issued_[pipe], touch});
}

// None, or of any order of magnitude.
std::uint64_t Core::delay() {
  if (random() % 2 != 0) return 0;
  return random() % (std::uint64_t{1} << random() % (kDelayBits + 1));
}

void Core::issue(pipe_t pipe, const std::vector<Touch>& touches, Advance advance) {
  block_until([this, pipe] { return queues_[pipe].size() < kQueueLength; }, "a full queue");
  for (const Touch& touch : touches) check_hazard(pipe, touch);
  ++issued_[pipe];
  for (const Touch& touch : touches) remember(pipe, touch);
  queues_[pipe].push_back({issued_[pipe], after_[pipe], now_ + delay(), std::move(advance)});
  tick();
}

void Core::scalar_touch(Touch touch) {
  check_hazard(PIPE_S, touch);
  ++issued_[PIPE_S];
  remember(PIPE_S, touch);
}

void Core::set_flag(pipe_t from, pipe_t to, int id) {
  if (id < 0 || id > 5) throw Fault("event id " + std::to_string(id) + " is not in 0..5");
  Clock clock = after_[from];
  clock[from] = issued_[from];
  if (!flags_.emplace(Flag{from, to, id}, clock).second) {
    throw Fault(std::string("SetFlag ") + kPipeNames[from] + "_" + kPipeNames[to] +
                " twice without WaitFlag");
  }
}

void Core::wait_flag(pipe_t from, pipe_t to, int id) {
  const auto flag = flags_.find({from, to, id});
  if (flag == flags_.end()) {
    throw Fault(std::string("WaitFlag ") + kPipeNames[from] + "_" + kPipeNames[to] +
                " without SetFlag");
  }
  const Clock clock = flag->second;
  flags_.erase(flag);
  if (to == PIPE_S) block_until([this, clock] { return is_complete(clock); }, "a flag");
  for (int p = 0; p < kNumPipes; ++p) after_[to][p] = std::max(after_[to][p], clock[p]);
}

void Core::barrier(pipe_t pipe) {
  if (pipe != PIPE_ALL) {
    after_[pipe][pipe] = issued_[pipe];
    return;
  }
  block_until([this] { return is_idle(); }, "PipeBarrier<PIPE_ALL>");
  after_.fill(issued_);
  accesses_.clear();
}

std::uint32_t Core::reserve(std::uint32_t num_bytes) {
  const std::uint32_t begin = reserved_;
  reserved_ += (num_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  if (reserved_ > kUnifiedBytes) {
    throw Fault("unified buffer: " + std::to_string(reserved_) + " bytes asked for, it has " +
                std::to_string(kUnifiedBytes));
  }
  return begin;
}

void Core::block_until(std::function<bool()> ready, const char* what) {
  if (ready()) return;
  ready_ = std::move(ready);
  waiting_for_ = what;
  Fiber::pause();
  ready_ = nullptr;
}

void Core::tick() {
  const std::uint64_t dice = random() % 64;
  if (dice == 0) paused_until_ = now_ + random() % 300;
  if (dice < 8) Fiber::pause();
}

void Core::look() {
  tick();
  Fiber::pause();
}

bool Core::advance(pipe_t pipe) {
  auto& queue = queues_[pipe];
  std::vector<Instruction*> ready;
  for (Instruction& instruction : queue) {
    if (!is_complete(instruction.after)) break;  // issued in order
    if (!instruction.is_done && now_ >= instruction.not_before) ready.push_back(&instruction);
  }
  if (ready.empty()) return false;
  Instruction& chosen = *ready[random() % ready.size()];
  chosen.is_done = chosen.advance(random);
  while (!queue.empty() && queue.front().is_done) {
    finished_[pipe] = queue.front().number;
    queue.pop_front();
  }
  return true;
}

bool Core::advance() {
  const auto first = random() % kNumPipes;
  for (std::uint64_t n = 0; n < kNumPipes; ++n) {
    if (advance(static_cast<pipe_t>((first + n) % kNumPipes))) return true;
  }
  return false;
}

void Core::finish() {
  barrier(PIPE_ALL);
  if (!flags_.empty()) throw Fault("SetFlag without WaitFlag at the end of the kernel");
  if (adds) throw Fault("SetAtomicAdd is still on at the end of the kernel");
  cache.require_clean();
}

std::string Core::text() const {
  std::string out = "device " + std::to_string(place.device) + " block " +
                    std::to_string(place.block) + ": " +
                    (ready_ ? std::string("waits for ") + waiting_for_ : "runs");
  for (int p = PIPE_V; p < kNumPipes; ++p) {
    if (!queues_[p].empty()) {
      out += std::string(", ") + kPipeNames[p] + " has " + std::to_string(queues_[p].size());
    }
  }
  return out;
}

}  // namespace asap::twin
