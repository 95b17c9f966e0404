// What the cores of all devices share: registered pieces of memory, and a core's cache before them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <stdexcept>
#include <string>

namespace asap::twin {

using Random = std::mt19937_64;

// The kernel did what the hardware forbids or leaves undefined.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The allocations a kernel may touch, on its own device or mapped from another.
class GlobalMemory {
 public:
  void add(const void* begin, std::uint64_t num_bytes);
  // Throws Fault unless one allocation holds all of it.
  void check(const void* begin, std::uint64_t num_bytes, const char* user) const;

 private:
  std::map<std::uintptr_t, std::uint64_t> num_bytes_;  // by begin
};

// The scalar data cache of one core: write-back, lines of 64 B, blind to what other cores write.
// Clean lines stay until they are invalidated (a kernel cannot count on eviction); dirty lines may
// be written back whole at any time.
class DataCache {
 public:
  struct Line {
    std::array<std::byte, 64> bytes;
    bool is_dirty;    // memory is behind
    bool is_written;  // and the kernel has not cleaned it, wherever it may be by now
  };
  using Lines = std::map<std::uintptr_t, Line>;  // by begin

  DataCache(const GlobalMemory& memory, Random& random) : memory_(memory), random_(random) {}

  void read(const void* from, void* to, std::size_t num_bytes);
  void write(void* to, const void* from, std::size_t num_bytes);
  void clean_and_invalidate(const void* address);
  void clean_and_invalidate_all();
  // Returns when what was cleaned is in memory.
  void await_clean() { is_cleaning_ = false; }
  // Throws Fault if what the kernel wrote, or has cleaned, may still be on its way.
  void require_clean() const;
  // What a kernel leaves in the cache, the next one on this core finds there.
  Lines take_lines() { return std::move(lines_); }
  void start_with(Lines lines) { lines_ = std::move(lines); }

 private:
  static constexpr std::uintptr_t kLineBytes = sizeof(Line::bytes);
  Line& line_of(std::uintptr_t address, std::size_t num_bytes);
  void write_back(std::uintptr_t begin, Line& line);
  void write_back_some();

  const GlobalMemory& memory_;
  Random& random_;
  Lines lines_;
  bool is_cleaning_ = false;
};

}  // namespace asap::twin
