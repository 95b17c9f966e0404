// A call that can stop in the middle and go on later, on a stack of its own: one AI core's program.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>

namespace asap::twin {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Run until the body pauses or ends; throws what it threw.
  void resume();
  // Go back to whoever resumed. Only inside a body, and never inside a catch block.
  static void pause();

  bool finished() const { return finished_; }

 private:
  static void enter();

  static constexpr std::size_t kStackBytes = 256 << 10;

  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  ucontext_t here_{};
  ucontext_t caller_{};
  std::exception_ptr failure_;
  bool finished_ = false;
};

}  // namespace asap::twin
