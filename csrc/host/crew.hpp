// Threads that do one call together.
#pragma once

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

namespace asap {

inline constexpr std::int64_t kShareable = 1 << 23;  // operations worth starting a thread for

// One of several threads that do the same call, each its part of what is counted.
struct Member {
  std::int64_t index;
  std::int64_t num_members;
  std::barrier<>* meeting;

  bool leads() const { return index == 0; }
  void meet() const { meeting->arrive_and_wait(); }
  std::int64_t first_of(std::int64_t count) const { return count * index / num_members; }
  std::int64_t end_of(std::int64_t count) const { return count * (index + 1) / num_members; }
};

// Call `work` once for each of so many threads, this one among them.
template <class Work>
void together(std::int64_t operations, int num_threads, const Work& work) {
  const std::int64_t num_members = operations < kShareable ? 1 : std::max(num_threads, 1);
  std::barrier<> meeting(num_members);
  std::vector<std::jthread> others;
  for (std::int64_t index = 1; index < num_members; ++index) {
    others.emplace_back([&, index] { work(Member{index, num_members, &meeting}); });
  }
  work(Member{0, num_members, &meeting});
}

}  // namespace asap
