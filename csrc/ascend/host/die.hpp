// One die: its runtime, its kernels by name, and the memory that is its own.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "acl.hpp"
#include "asap/geometry.hpp"
#include "asap/wait.hpp"

namespace asap::ascend {

// Files of the folder that `make ascend` fills.
inline constexpr const char* kKernelsFile = "asap_kernels.o";
inline constexpr const char* kTilingFile = "libasap_tiling.so";

// A kernel's parameter: every one has 8 bytes.
struct Argument {
  Argument(const void* memory) : bits(reinterpret_cast<std::uint64_t>(memory)) {}
  Argument(std::integral auto value)
      : bits(static_cast<std::uint64_t>(static_cast<std::int64_t>(value))) {}
  std::uint64_t bits;
};

class Die {
 public:
  // The runtime library, the folder with the kernels, the number of the device among the visible
  // ones. Throws AclError naming what is missing.
  Die(const std::string& library, const std::string& kernels, int device);

  // Makes the die the one that calls of this thread go to.
  void enter() const;
  const Acl& acl() const { return acl_; }
  int device() const { return device_; }
  const std::string& kernels() const { return kernels_; }
  const Cores& cores() const { return cores_; }

  // Returns when the launch is queued.
  void launch(const std::string& name, int num_blocks, Stream stream,
              std::initializer_list<Argument> arguments) const;

 private:
  Function function(const std::string& name) const;

  Acl acl_;
  int device_;
  std::string kernels_;
  Cores cores_{};
  Binary binary_ = nullptr;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Function> functions_;
};

using DiePtr = std::shared_ptr<const Die>;

// Memory of one die that nobody else opens, zeroed.
class Memory {
 public:
  Memory(DiePtr die, std::int64_t num_bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* address() const { return address_; }
  std::int64_t num_bytes() const { return num_bytes_; }
  // Copies from and to this process, at an offset in bytes.
  void put(const void* from, std::int64_t num_bytes, std::int64_t offset = 0) const;
  void get(void* to, std::int64_t num_bytes, std::int64_t offset = 0) const;

 private:
  DiePtr die_;
  std::int64_t num_bytes_;
  std::byte* address_;
};

// What a block of a kernel leaves, see csrc/ascend/kernels/sync.h for its meaning.
struct Status {
  std::int32_t code, what, value;
};

enum Code : std::int32_t { kOk, kTimeout, kClosed, kCorrupt, kIdle, kInvalid };

// A stream of one die, for one thread at a time.
class Lane {
 public:
  explicit Lane(DiePtr die);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // The argument that a kernel takes as its status.
  const void* status() const { return status_.address(); }
  // Runs a kernel to its end; the status of each block.
  std::vector<Status> run(const std::string& kernel, int num_blocks,
                          std::initializer_list<Argument> arguments) const;

 private:
  DiePtr die_;
  Memory status_;
  Stream stream_;
};

// Ticks of GetSystemCycle on A2 and A3 in a time.
inline std::int64_t cycles(double seconds) { return static_cast<std::int64_t>(seconds * 50e6); }

// A kernel that waits gives its cores up this often, so that the host may look at its deadline.
inline constexpr double kPatienceS = 0.01;

inline double patience_s(const Deadline& deadline) {
  return std::clamp(deadline.left_s(), 0.0, kPatienceS);
}

}  // namespace asap::ascend
