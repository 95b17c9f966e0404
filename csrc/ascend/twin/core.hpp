// One AI core: pipes that finish out of order, flags between them, the unified buffer and its
// hazards. A kernel's program is the scalar pipe; what it issues runs when the machine says so.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "memory.hpp"

enum pipe_t { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_FIX, PIPE_ALL };

namespace asap::twin {

inline constexpr int kNumPipes = PIPE_ALL;
// 192 KB, less what the system keeps for itself.
inline constexpr std::uint32_t kUnifiedBytes = 196608 - 256 - 8192;
inline constexpr std::uint32_t kBlockBytes = 32;

// Per pipe, how many of its instructions.
using Clock = std::array<std::uint64_t, kNumPipes>;

// A use of the unified buffer.
struct Touch {
  std::uint32_t begin;
  std::uint32_t end;
  bool writes;
};

// One piece of an instruction's work; true when it was the last.
using Advance = std::function<bool(Random&)>;

struct Place {
  int device;
  int block;
  int num_blocks;
};

class Core {
 public:
  Core(Place place, std::uint64_t seed, const GlobalMemory& memory, const std::uint64_t& now);

  // For the kernel's program; each may let others run first.
  void issue(pipe_t pipe, const std::vector<Touch>& touches, Advance advance);
  void set_flag(pipe_t from, pipe_t to, int id);
  void wait_flag(pipe_t from, pipe_t to, int id);
  void barrier(pipe_t pipe);
  void scalar_touch(Touch touch);
  std::uint32_t reserve(std::uint32_t num_bytes);
  void block_until(std::function<bool()> ready, const char* what);
  void tick();
  void look();  // an access to memory others write: they always get a chance to run before it

  // For the machine.
  bool may_run() const { return now_ >= paused_until_ && (!ready_ || ready_()); }
  bool advance();
  void finish();  // at the end of the kernel, inside its program
  std::string text() const;

  const Place place;
  Random random;
  DataCache cache;
  const GlobalMemory& memory;
  std::vector<std::byte> unified;
  std::vector<bool> is_set;  // per byte of `unified`
  bool adds = false;         // SetAtomicAdd is on
  std::uint8_t* system_workspace = nullptr;
  const std::uint64_t& now_;

 private:
  struct Instruction {
    std::uint64_t number;
    Clock after;
    std::uint64_t not_before;
    Advance advance;
    bool is_done = false;
  };
  struct Access {
    pipe_t pipe;
    std::uint64_t number;
    Touch touch;
  };
  using Flag = std::tuple<pipe_t, pipe_t, int>;

  bool is_complete(const Clock& clock) const;
  bool is_idle() const;
  void check_hazard(pipe_t pipe, const Touch& touch) const;
  void remember(pipe_t pipe, const Touch& touch);
  bool is_ordered_everywhere(const Access& access) const;
  bool advance(pipe_t pipe);
  std::uint64_t delay();

  std::array<std::deque<Instruction>, kNumPipes> queues_;
  Clock issued_{};
  Clock finished_{};
  std::array<Clock, kNumPipes> after_{};  // per pipe: what its next instruction comes after
  std::map<Flag, Clock> flags_;
  std::vector<Access> accesses_;
  std::uint32_t reserved_ = 0;
  std::uint64_t paused_until_ = 0;
  std::function<bool()> ready_;
  const char* waiting_for_ = "";
};

}  // namespace asap::twin
