// Several devices with their streams, in one thread and in virtual time: a step lets one core go on
// or finishes one piece of one instruction, and the seed decides which.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../host/partition.hpp"
#include "core.hpp"
#include "fiber.hpp"

namespace asap::twin {

using ascend::Cores;
using ascend::kDieCores;

struct Launch {
  std::string name;
  int device;
  int stream;  // launches of a (device, stream) run one after the other
  int after;   // number of the launch it waits for, as an event between streams, or -1
  int num_blocks;
  Cores per_block;
  std::function<void()> kernel;
};

// One launch while it runs.
class Grid {
 public:
  Grid(const Launch& launch, std::uint64_t seed, const GlobalMemory& memory,
       const std::uint64_t& now);

  Core& core(std::size_t block) { return *blocks_[block].core; }
  std::size_t num_blocks() const { return blocks_.size(); }
  bool finished() const;
  // One step of one core; false if it could do nothing.
  bool step(std::size_t block);
  void sync_all();
  std::string text() const;

  const Launch& launch;

 private:
  struct Block {
    std::unique_ptr<Core> core;
    std::unique_ptr<Fiber> fiber;
  };
  std::vector<Block> blocks_;
  std::size_t arrived_ = 0;
  std::uint64_t generation_ = 0;
};

class Machine {
 public:
  explicit Machine(std::uint64_t seed) : random_(seed) {}

  GlobalMemory& memory() { return memory_; }
  void add(Launch launch);
  // Until every stream is empty. Throws Fault, also when that takes more than `max_steps`.
  void run(std::uint64_t max_steps);
  std::uint64_t now() const { return now_; }

 private:
  using Stream = std::pair<int, int>;  // device, number
  void start();
  void retire();
  void warm_up(Grid& grid);
  std::string text() const;

  GlobalMemory memory_;
  Random random_;
  std::uint64_t now_ = 0;
  std::map<Stream, std::deque<std::pair<int, Launch>>> streams_;  // with their numbers
  std::vector<bool> is_over_;                                     // per launch
  std::map<Stream, std::unique_ptr<Grid>> running_;
  std::map<int, Cores> in_use_;                          // per device
  std::map<int, std::vector<DataCache::Lines>> caches_;  // per device: of cores that are free
};

// The core whose program is running, and the launch it belongs to.
Core& this_core();
Grid& this_grid();

}  // namespace asap::twin
