// The attention side of the primitives on one die, for one rank (i, j); the counterpart of
// csrc/include/asap/attention_comm.hpp, with the same calls and the same words when one fails.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "private_memory.hpp"
#include "shared_buffer.hpp"

namespace asap::ascend {

// As the kernels number them.
enum class RowType : std::int64_t { float32, bfloat16, float16 };
enum class Combine : std::int64_t { reduced, per_expert };

struct RankId {
  std::int64_t dp_group;  // i
  std::int64_t tp_rank;   // j
  std::uint64_t epoch;    // of this incarnation of the group
};

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

// One thread at a time; only `abort` may be called from another.
class AttentionComm {
 public:
  // `moe_buffers` in the order of e. Throws std::invalid_argument, AclError.
  AttentionComm(DiePtr die, const Layout& layout, std::shared_ptr<SharedBuffer> buffer,
                std::vector<std::shared_ptr<SharedBuffer>> moe_buffers, RankId id, RowType row_type,
                Combine combine);

  // Throws Overflow and std::invalid_argument (nothing was written), PeerTimeout, Closed, AclError.
  void async_dispatch_send(std::int64_t slot, std::int64_t layer, const Routed& routed,
                           double timeout_s);
  // A sum a token, to `out` of num_tokens(slot) rows. After PeerTimeout it may be called again.
  // Throws CorruptMessage, PeerTimeout, Closed, std::invalid_argument, AclError.
  void async_combine_recv(std::int64_t slot, void* out, bool is_on_die, double timeout_s);

  std::int64_t num_tokens(std::int64_t slot) const { return slot_at(slot).num_tokens; }
  // Seconds that sends waited for room on each MoE device, to the 10 ms a launch lasts.
  std::vector<double> backpressure_s() const;
  void abort() noexcept;

  const Layout& layout() const { return layout_; }
  RowType row_type() const { return row_type_; }

 private:
  struct Slot {
    std::unique_ptr<Memory> plan, hidden, expert_ids, weights;
    std::int64_t num_tokens = 0, layer = 0;
    std::uint64_t sequence = 0;
    bool in_flight = false, solo = false;
  };

  Slot& slot_at(std::int64_t slot) const;
  void check_room(std::int64_t slot, std::int64_t num_tokens) const;
  void plan(std::int64_t slot, std::int64_t layer, const Routed& routed);
  [[noreturn]] void refuse(const Status& status, const void* expert_ids) const;
  const void* staged(const Memory& memory, const Array& array, std::int64_t num_bytes) const;
  std::int32_t send_to(std::int64_t slot, const void* hidden, std::int32_t devices,
                       double timeout_s) const;
  Status receive(std::int64_t slot, const void* out, double timeout_s) const;
  std::string who(std::int64_t slot) const;
  int num_blocks(std::int64_t wanted) const;

  const DiePtr die_;
  const Layout layout_;
  const std::shared_ptr<SharedBuffer> buffer_;
  const std::vector<std::shared_ptr<SharedBuffer>> moe_buffers_;
  const RankId id_;
  const RowType row_type_;
  const Combine combine_;
  const Lane lane_;
  const Memory layout_memory_, table_, abort_;
  mutable std::array<Slot, kNumSlots> slots_;
  std::vector<std::atomic<double>> backpressure_s_;
  std::atomic<bool> aborted_{false};
};

}  // namespace asap::ascend
