#include "machine.hpp"

#include <algorithm>
#include <utility>

namespace asap::twin {
namespace {

thread_local Core* current_core = nullptr;
thread_local Grid* current_grid = nullptr;

Cores times(const Cores& cores, int count) { return {cores.vector * count, cores.cube * count}; }

bool fit(const Cores& used, const Cores& wanted) {
  return used.vector + wanted.vector <= kDieCores.vector &&
         used.cube + wanted.cube <= kDieCores.cube;
}

}  // namespace

Core& this_core() { return *current_core; }
Grid& this_grid() { return *current_grid; }

Grid::Grid(const Launch& what, std::uint64_t seed, const GlobalMemory& memory,
           const std::uint64_t& now)
    : launch(what) {
  for (int b = 0; b < what.num_blocks; ++b) {
    const Place place{what.device, b, what.num_blocks};
    auto core = std::make_unique<Core>(place, seed + static_cast<std::uint64_t>(b), memory, now);
    auto fiber = std::make_unique<Fiber>([this, &core = *core] {
      launch.kernel();
      core.finish();
    });
    blocks_.push_back({std::move(core), std::move(fiber)});
  }
}

bool Grid::finished() const {
  return std::ranges::all_of(blocks_, [](const Block& block) { return block.fiber->finished(); });
}

bool Grid::step(std::size_t block) {
  Core& core = *blocks_[block].core;
  Fiber& fiber = *blocks_[block].fiber;
  if (core.random() % 2 == 0 && core.advance()) return true;
  if (!fiber.finished() && core.may_run()) {
    current_core = &core;
    current_grid = this;
    fiber.resume();
    return true;
  }
  return core.advance();
}

void Grid::sync_all() {
  Core& core = this_core();
  if (++arrived_ == blocks_.size()) {
    arrived_ = 0;
    ++generation_;
    return;
  }
  core.block_until([this, before = generation_] { return generation_ != before; }, "SyncAll");
}

std::string Grid::text() const {
  std::string out;
  for (const Block& block : blocks_) {
    if (!block.fiber->finished()) out += "\n  " + launch.name + " " + block.core->text();
  }
  return out;
}

void Machine::add(Launch launch) {
  if (launch.num_blocks < 1 || !fit({}, times(launch.per_block, launch.num_blocks))) {
    throw Fault(launch.name + ": " + std::to_string(launch.num_blocks) + " blocks; a device has " +
                std::to_string(kDieCores.vector) + " vector and " + std::to_string(kDieCores.cube) +
                " cube cores");
  }
  const int number = static_cast<int>(is_over_.size());
  if (launch.after >= number) throw Fault(launch.name + ": waits for a launch that comes later");
  is_over_.push_back(false);
  streams_[{launch.device, launch.stream}].emplace_back(number, std::move(launch));
}

void Machine::start() {
  for (auto& [stream, launches] : streams_) {
    if (launches.empty() || running_.contains(stream)) continue;
    const Launch& next = launches.front().second;
    if (next.after >= 0 && !is_over_[static_cast<std::size_t>(next.after)]) continue;
    const Cores wanted = times(next.per_block, next.num_blocks);
    Cores& used = in_use_[next.device];
    if (!fit(used, wanted)) continue;  // until another stream lets its cores go
    used = {used.vector + wanted.vector, used.cube + wanted.cube};
    running_[stream] = std::make_unique<Grid>(next, random_(), memory_, now_);
    warm_up(*running_[stream]);
  }
}

// Its blocks run on any cores that are free, whose caches have what earlier launches left.
void Machine::warm_up(Grid& grid) {
  std::vector<DataCache::Lines>& caches = caches_[grid.launch.device];
  for (std::size_t b = 0; b < grid.num_blocks() && !caches.empty(); ++b) {
    std::swap(caches[random_() % caches.size()], caches.back());
    grid.core(b).cache.start_with(std::move(caches.back()));
    caches.pop_back();
  }
}

void Machine::retire() {
  std::erase_if(running_, [&](const auto& entry) {
    const auto& [stream, grid] = entry;
    if (!grid->finished()) return false;
    const Cores freed = times(grid->launch.per_block, grid->launch.num_blocks);
    Cores& used = in_use_[grid->launch.device];
    used = {used.vector - freed.vector, used.cube - freed.cube};
    for (std::size_t b = 0; b < grid->num_blocks(); ++b) {
      caches_[grid->launch.device].push_back(grid->core(b).cache.take_lines());
    }
    is_over_[static_cast<std::size_t>(streams_[stream].front().first)] = true;
    streams_[stream].pop_front();
    return true;
  });
}

void Machine::run(std::uint64_t max_steps) {
  start();
  while (!running_.empty()) {
    if (++now_ > max_steps)
      throw Fault("hang after " + std::to_string(max_steps) + " steps:" + text());
    auto chosen = running_.begin();
    std::advance(chosen, static_cast<std::ptrdiff_t>(random_() % running_.size()));
    Grid& grid = *chosen->second;
    grid.step(random_() % grid.num_blocks());
    if (grid.finished()) {
      retire();
      start();
    }
  }
  if (std::ranges::find(is_over_, false) != is_over_.end()) {
    throw Fault("launches that wait for each other");
  }
}

std::string Machine::text() const {
  std::string out;
  for (const auto& entry : running_) out += entry.second->text();
  return out;
}

}  // namespace asap::twin
