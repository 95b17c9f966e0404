// How one process waits for another: spin briefly, then sleep on a doorbell (a shared futex).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "asap/layout.hpp"

namespace asap {

// An eventcount: whoever changes a flag rings, whoever waits for one sleeps until it rings.
//
// No wake-up is lost: a waiter registers, reads `rings`, looks at its flags and sleeps only while
// `rings` is unchanged; a ringer sets its flag, bumps `rings`, then looks for waiters. All four
// steps are seq_cst, so either the ringer sees the waiter or the waiter sees the new `rings`. A
// waiter that is killed asleep leaves the count too high, which costs one needless system call a
// ring.
struct Doorbell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> waiters;

  void ring() noexcept;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(Doorbell) <= kFlagBytes);

double monotonic_s() noexcept;

// A point in time; an infinite timeout never passes.
class Deadline {
 public:
  explicit Deadline(double timeout_s) : timeout_s_(timeout_s) { restart(); }

  void restart() noexcept { at_s_ = monotonic_s() + timeout_s_; }
  // It is never nearer than a whole timeout after this moment.
  void count_from(double moment_s) noexcept { at_s_ = std::max(at_s_, moment_s + timeout_s_); }
  double left_s() const noexcept { return at_s_ - monotonic_s(); }
  double timeout_s() const noexcept { return timeout_s_; }

 private:
  double timeout_s_;
  double at_s_;
};

// "2.00 s", for the text of a PeerTimeout.
std::string seconds_text(double seconds);

// Registers as a waiter of some doorbells for as long as it lives, and can sleep until one rings.
class Sleeper {
 public:
  explicit Sleeper(const std::vector<Doorbell*>& doorbells);
  ~Sleeper();
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  // Returns when a doorbell has rung since construction, after `timeout_s`, or for no reason.
  void sleep(double timeout_s) const noexcept;

 private:
  const std::vector<Doorbell*>& doorbells_;
  std::vector<std::uint32_t> seen_;
};

void relax_cpu() noexcept;

inline constexpr int kSpins = 200;       // about 10 us: longer starves peers on few cores
inline constexpr double kSliceS = 0.05;  // how late an abort or a deadline may be noticed
inline const char* const kClosedText = "the instance is stopping";

// Wait until `ready()`; false once the deadline has passed. `ready` may move the deadline.
// Throws Closed as soon as `aborted` is seen.
template <class Ready>
bool wait_until(const std::vector<Doorbell*>& doorbells, const Deadline& deadline,
                const std::atomic<bool>& aborted, Ready ready) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (ready()) return true;
    relax_cpu();
  }
  while (true) {
    // Relaxed: the flag carries no data.
    if (aborted.load(std::memory_order_relaxed)) throw Closed(kClosedText);
    const Sleeper sleeper(doorbells);
    if (ready()) return true;
    const double left_s = deadline.left_s();
    if (left_s <= 0) return false;
    sleeper.sleep(left_s < kSliceS ? left_s : kSliceS);
  }
}

}  // namespace asap
