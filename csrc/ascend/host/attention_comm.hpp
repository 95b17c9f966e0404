// The attention side of the primitives on one die, for one rank (i, j); the counterpart of
// csrc/include/asap/attention_comm.hpp, with the same calls and the same words when one fails.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "asap/endpoint.hpp"
#include "asap/placement.hpp"
#include "asap/wait.hpp"
#include "private_memory.hpp"
#include "shared_buffer.hpp"
#include "turn_mutex.hpp"

namespace asap::ascend {

// As the kernels number them.
enum class RowType : std::int64_t { float32, bfloat16, float16 };
enum class Combine : std::int64_t { reduced, per_expert };

inline constexpr std::int64_t element_bytes(RowType type) {
  return type == RowType::float32 ? 4 : 2;
}

// MoE devices, or ranks of a group, as a mask.
using Peers = std::int32_t;

// An array of the caller's, in this process or on the die.
struct Array {
  const void* bytes;
  bool is_on_die;
};

// What the router chose for S tokens: hidden [S, H], the others [S, K].
struct Routed {
  std::int64_t num_tokens;
  Array hidden, expert_ids, weights;
};

// One thread at a time; only `abort`, `be_patient` and `replace_device` may be called from another.
class AttentionComm {
 public:
  // `moe_buffers` in the order of e; which expert is in each place. Throws std::invalid_argument,
  // AclError.
  AttentionComm(DiePtr die, const Layout& layout, std::shared_ptr<SharedBuffer> buffer,
                std::vector<std::shared_ptr<SharedBuffer>> moe_buffers,
                std::span<const std::int32_t> expert_of_place, RankId id, RowType row_type,
                Combine combine);

  // Rows that lie on the die stay there, unchanged, until the results have been received: a device
  // that dies meanwhile leaves nothing to send to its successor but them.
  // Throws Overflow and std::invalid_argument (nothing was written), PeerTimeout, Closed, AclError.
  void async_dispatch_send(std::int64_t slot, std::int64_t layer, const Routed& routed,
                           double timeout_s);
  // A sum a token, to `out` of num_tokens(slot) rows. After PeerTimeout it may be called again.
  // Throws CorruptMessage, PeerTimeout, Closed, std::invalid_argument, AclError.
  void async_combine_recv(std::int64_t slot, void* out, bool is_on_die, double timeout_s);

  // See csrc/include/asap/attention_comm.hpp. The first waits for a launch under way, 10 ms at
  // most.
  void replace_device(std::int64_t moe_device, std::shared_ptr<SharedBuffer> buffer);
  void be_patient(double seconds) noexcept {
    patient_until_s_.store(monotonic_s() + seconds, std::memory_order_relaxed);
  }

  std::int64_t num_tokens(std::int64_t slot) const { return slot_at(slot).num_tokens; }
  // Seconds that sends waited for room on each MoE device, to the 10 ms a launch lasts.
  std::vector<double> backpressure_s() const;
  void abort() noexcept;

  const Layout& layout() const { return layout_; }
  RowType row_type() const { return row_type_; }

 private:
  struct Slot : Sent {
    std::unique_ptr<Memory> plan, hidden, expert_ids, weights;
    const void* rows = nullptr;  // `hidden`, or where the caller has them
    std::int64_t num_tokens = 0;
    Peers unsent = 0;  // devices the message has not been written to
  };
  struct Targets {
    Peers devices, empty;  // `empty`: those that get a message without rows
  };

  Slot& slot_at(std::int64_t slot) const;
  void put_placement(const Placement& placement) const;
  void begin_message(std::int64_t slot, std::int64_t layer, const Routed& routed);
  void plan(std::int64_t slot, std::int64_t layer, const Routed& routed);
  [[noreturn]] void refuse(const Status& status, const void* expert_ids) const;
  const void* staged(const Memory& memory, const Array& array, std::int64_t num_bytes) const;
  bool is_over(Deadline& deadline) const noexcept;
  void send_where_room(std::int64_t slot, const Deadline& deadline);
  void count_wait(Peers devices, double seconds);
  Peers send(std::int64_t slot, const Targets& targets, double timeout_s);
  Status receive(std::int64_t slot, const void* out, const Deadline& deadline);
  Peers take_last_reply(std::int64_t slot, std::int64_t moe_device) const;
  void send_again(std::int64_t slot, std::int64_t moe_device, Peers owing);
  std::string who(std::int64_t slot) const;
  int num_blocks(std::int64_t wanted) const;

  const DiePtr die_;
  const Layout layout_;
  const std::shared_ptr<SharedBuffer> buffer_;
  // Held for each launch, never between two: `replace_device` changes what a launch works with.
  TurnMutex mutex_;
  std::vector<std::shared_ptr<SharedBuffer>> moe_buffers_;
  Peers was_clear_ = 0;  // of what a dead incarnation left
  const RankId id_;
  const RowType row_type_;
  const Combine combine_;
  const Lane lane_;
  const Memory layout_memory_, placement_memory_, table_, abort_;
  mutable std::array<Slot, kNumSlots> slots_;
  std::atomic<double> patient_until_s_{0};           // relaxed: it carries no data
  std::vector<std::atomic<double>> backpressure_s_;  // by e; the sending thread alone writes
  std::atomic<bool> aborted_{false};
};

}  // namespace asap::ascend
