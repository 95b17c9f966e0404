// How the wheel calls an operator: one function plans it, another runs the plan.
#pragma once

#include <functional>

#include "tensor.hpp"

namespace fake {

using Executor = std::function<void()>;

inline constexpr int kInvalid = 161002;

// The first phase: no operator needs memory of its own.
inline int plan(std::uint64_t* workspace_bytes, Executor** executor, Executor work) {
  *workspace_bytes = 0;
  *executor = new Executor(std::move(work));
  return 0;
}

// The second phase; what an operator throws is a failed call.
int run(const char* name, Executor* executor);

}  // namespace fake

// Defines both phases; the body that follows is the first's, and ends in `plan(bytes, e, ...)`.
#define ASAP_OPERATOR(name, ...)                                                        \
  int aclnn##name(void*, std::uint64_t, fake::Executor* executor, void*) {              \
    return fake::run(#name, executor);                                                  \
  }                                                                                     \
  int aclnn##name##GetWorkspaceSize(__VA_ARGS__, [[maybe_unused]] std::uint64_t* bytes, \
                                    [[maybe_unused]] fake::Executor** e)
