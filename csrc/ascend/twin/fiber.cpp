#include "fiber.hpp"

#include <utility>

namespace asap::twin {
namespace {

thread_local Fiber* running = nullptr;

}  // namespace

Fiber::Fiber(std::function<void()> body)
    : body_(std::move(body)), stack_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)) {
  getcontext(&here_);
  here_.uc_stack.ss_sp = stack_.get();
  here_.uc_stack.ss_size = kStackBytes;
  here_.uc_link = nullptr;
  makecontext(&here_, &Fiber::enter, 0);
}

void Fiber::enter() {
  Fiber& self = *running;
  try {
    self.body_();
  } catch (...) {
    self.failure_ = std::current_exception();
  }
  self.finished_ = true;
  pause();
}

void Fiber::resume() {
  running = this;
  swapcontext(&caller_, &here_);
  running = nullptr;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Fiber::pause() {
  Fiber& self = *running;
  swapcontext(&self.here_, &self.caller_);
}

}  // namespace asap::twin
