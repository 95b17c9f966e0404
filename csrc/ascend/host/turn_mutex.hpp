// A lock that goes to whoever has waited longest. A thread that waits on a die launches one kernel
// after the other; with an ordinary mutex it would hardly ever let another thread in between.
#pragma once

#include <atomic>
#include <cstdint>

namespace asap::ascend {

class TurnMutex {
 public:
  // Acquire, release: what the last owner did is seen by the next. The numbers carry nothing else.
  void lock() noexcept {
    const std::uint32_t mine = next_.fetch_add(1, std::memory_order_relaxed);
    std::uint32_t turn = turn_.load(std::memory_order_acquire);
    while (turn != mine) {
      turn_.wait(turn, std::memory_order_acquire);
      turn = turn_.load(std::memory_order_acquire);
    }
  }
  void unlock() noexcept {
    turn_.fetch_add(1, std::memory_order_release);
    turn_.notify_all();
  }

 private:
  std::atomic<std::uint32_t> next_{0}, turn_{0};
};

}  // namespace asap::ascend
