// The attention side of the primitives, for one rank (i, j): async-dispatch-send,
// async-combine-recv.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "asap/endpoint.hpp"
#include "asap/protocol.hpp"
#include "asap/routing.hpp"
#include "asap/rows.hpp"
#include "asap/shared_buffer.hpp"

namespace asap {

// One thread at a time; only `abort`, `be_patient` and `replace_device` may be called from another.
class AttentionComm {
 public:
  // `moe_buffers` in the order of e; which expert is in each place. Throws std::invalid_argument.
  AttentionComm(const Layout& layout, std::shared_ptr<SharedBuffer> buffer,
                std::vector<std::shared_ptr<SharedBuffer>> moe_buffers,
                std::span<const std::int32_t> expert_of_place, RankId id, RowType row_type,
                Combine combine);

  // Write this rank's tokens to every MoE device that owns one of their experts (3.2.1). Devices
  // that have room are served first, all of them together. Returns once all bits are set; waits
  // only for room. More than slot_rows tokens, in slot 0 alone, use the rows of both slots (3.3.2).
  // Throws Overflow and std::invalid_argument (nothing was written), PeerTimeout, Closed.
  void async_dispatch_send(std::int64_t slot, std::int64_t layer, const Rows& hidden,
                           const Choices& choices, double timeout_s);

  // Wait for all devices that owe a reply to the slot's message, then write each token's sum to
  // `out`, a row a token (3.2.2). After PeerTimeout it may be called again.
  // Throws CorruptMessage, PeerTimeout, Closed, std::invalid_argument.
  void async_combine_recv(std::int64_t slot, const Rows& out, double timeout_s);

  // A MoE device is being replaced: for so long, or until it is, no wait's deadline passes, and
  // then each wait has its whole timeout.
  void be_patient(double seconds) noexcept {
    patient_until_s_.store(monotonic_s() + seconds, std::memory_order_relaxed);
  }

  // MoE device e is dead, not merely hung, and `buffer` is its successor's. What the dead one had
  // answered counts. Of each slot's message, if it had been sent, the successor gets the rows that
  // are still owed; if none are, an empty message, since a device computes what all T ranks have
  // sent. Never waits; waits under way go on with the successor. Throws std::invalid_argument.
  void replace_device(std::int64_t moe_device, std::shared_ptr<SharedBuffer> buffer);

  // Rows the slot's message has, and so `out` must have.
  std::int64_t num_tokens(std::int64_t slot) const;

  // Seconds that async_dispatch_send has waited for room on each MoE device, by e. A wait for
  // several devices is divided among them, so the sum is the time waited. For any thread.
  std::vector<double> backpressure_s() const;

  // Every wait, present or later, throws Closed within 60 ms.
  void abort() noexcept { aborted_.store(true, std::memory_order_relaxed); }

  const Layout& layout() const { return layout_; }
  RowType row_type() const { return row_type_; }

 private:
  struct Slot : Sent {
    explicit Slot(Routing empty) : routing(std::move(empty)) {}

    Routing routing;
    std::vector<std::int64_t> unsent;  // devices the message has not been written to
    std::vector<std::int64_t> owing;   // devices whose reply has not come
  };
  struct Send {
    std::int64_t slot;
    Rows hidden;
  };

  Slot& slot_at(std::int64_t slot);
  const Slot& slot_at(std::int64_t slot) const;
  const MoEView& moe_at(std::int64_t moe_device) const;
  bool has_room(std::int64_t slot, std::int64_t moe_device);
  void await_room(std::int64_t slot, Deadline& deadline);
  void count_wait(const std::vector<std::int64_t>& devices, double seconds);
  void write_rows(const Send& send, std::span<const std::int64_t> devices);
  void write_header(std::int64_t slot, std::int64_t moe_device);
  Message write_empty_header(std::int64_t slot, std::int64_t moe_device);
  void begin_message(std::int64_t slot, std::int64_t layer, const Choices& choices);
  void move_if_patient(Deadline& deadline) const noexcept;
  bool send_where_room(const Send& send);
  void await_replies(std::int64_t slot, double timeout_s);
  bool fits(std::int64_t slot, std::int64_t moe_device) const;
  void check_reply(std::int64_t slot, std::int64_t moe_device) const;
  void take_last_reply(std::int64_t slot, std::int64_t moe_device);
  void send_again(std::int64_t slot, std::int64_t moe_device, const MoEView& dead);
  std::string who(std::int64_t slot) const;

  const Layout layout_;
  const std::shared_ptr<SharedBuffer> buffer_;
  const RankId id_;
  const RowType row_type_;
  const AttentionView view_;
  Placement placement_;
  // Held while the members below it are used, never in a wait: `replace_device` changes them.
  std::mutex mutex_;
  std::vector<std::shared_ptr<SharedBuffer>> moe_buffers_;
  std::vector<MoEView> moe_;
  std::vector<bool> was_clear_;  // of what a dead incarnation left, by device
  std::vector<Slot> slots_;
  std::atomic<double> patient_until_s_{0};           // relaxed: it carries no data
  std::vector<std::atomic<double>> backpressure_s_;  // by e; the sending thread alone writes
  std::atomic<bool> aborted_{false};
};

}  // namespace asap
