#include "asap/wait.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdio>

namespace asap {
namespace {

// futex_waitv (Linux 5.16) by its own names: the headers of older build images lack it.
constexpr long kFutexWaitv = 449;
constexpr std::uint32_t kFutex32 = 2;
constexpr std::size_t kMaxWaitv = 128;
constexpr double kBlindSliceS = 0.001;  // between looks when the kernel cannot watch several

struct Waitv {
  std::uint64_t expected;
  std::uint64_t address;
  std::uint32_t flags;
  std::uint32_t reserved;
};

timespec timespec_of(double seconds) {
  const double whole = std::floor(seconds);
  return {static_cast<time_t>(whole), static_cast<long>((seconds - whole) * 1e9)};
}

void wait_one(const Doorbell& doorbell, std::uint32_t seen, double timeout_s) {
  const timespec relative = timespec_of(timeout_s);
  syscall(SYS_futex, &doorbell.rings, FUTEX_WAIT, seen, &relative, nullptr, 0);
}

// False where the kernel or a sandbox lacks the call.
bool wait_any(const std::vector<Doorbell*>& doorbells, const std::vector<std::uint32_t>& seen,
              double timeout_s) {
  std::vector<Waitv> waits;
  for (std::size_t d = 0; d < std::min(doorbells.size(), kMaxWaitv); ++d) {
    waits.push_back({seen[d], reinterpret_cast<std::uint64_t>(&doorbells[d]->rings), kFutex32, 0});
  }
  const timespec until = timespec_of(monotonic_s() + timeout_s);
  const long rc = syscall(kFutexWaitv, waits.data(), waits.size(), 0, &until, CLOCK_MONOTONIC);
  return rc >= 0 || (errno != ENOSYS && errno != EPERM);
}

}  // namespace

double monotonic_s() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::string seconds_text(double seconds) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.2f s", seconds);
  return buffer;
}

void relax_cpu() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void Doorbell::ring() noexcept {
  rings.fetch_add(1, std::memory_order_seq_cst);
  if (waiters.load(std::memory_order_seq_cst) == 0) return;
  // Not FUTEX_PRIVATE: the sleeper is another process.
  syscall(SYS_futex, &rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

Sleeper::Sleeper(const std::vector<Doorbell*>& doorbells) : doorbells_(doorbells) {
  seen_.reserve(doorbells.size());
  for (Doorbell* doorbell : doorbells) {
    doorbell->waiters.fetch_add(1, std::memory_order_seq_cst);
    seen_.push_back(doorbell->rings.load(std::memory_order_seq_cst));
  }
}

Sleeper::~Sleeper() {
  for (Doorbell* doorbell : doorbells_) {
    // Relaxed: a ringer that still sees us makes one needless call.
    doorbell->waiters.fetch_sub(1, std::memory_order_relaxed);
  }
}

void Sleeper::sleep(double timeout_s) const noexcept {
  if (doorbells_.size() == 1) return wait_one(*doorbells_[0], seen_[0], timeout_s);
  if (!wait_any(doorbells_, seen_, timeout_s)) {
    wait_one(*doorbells_[0], seen_[0], std::min(timeout_s, kBlindSliceS));
  }
}

}  // namespace asap
