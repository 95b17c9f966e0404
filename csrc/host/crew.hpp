// Threads that do one call together: those of the OpenMP runtime that torch has brought into the
// process. A pool of our own would compete with it for the cores: its idle threads spin.
#pragma once

#include <cstdint>
#include <functional>

namespace asap {

inline constexpr std::int64_t kShareable = 1 << 23;  // operations worth waking a thread for

// One of several threads that do the same call, each its part of what is counted.
struct Member {
  std::int64_t index;
  std::int64_t num_members;

  bool leads() const { return index == 0; }
  std::int64_t first_of(std::int64_t count) const { return count * index / num_members; }
  std::int64_t end_of(std::int64_t count) const { return count * (index + 1) / num_members; }
  // Wait for the others; what they wrote before is visible behind it.
  void meet() const;
};

// Call `work` once for each of at most so many threads, of which this one is the first: for this
// one alone where little is to be done, or where there is no such runtime.
void together(std::int64_t operations, int num_threads,
              const std::function<void(const Member&)>& work);

// How many threads a call that is large enough is shared among.
int team_of(int num_threads);

}  // namespace asap
