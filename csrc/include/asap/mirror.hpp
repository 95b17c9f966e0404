// Buffers of devices on other hosts: the primitives write to a mirror of such a buffer in their own
// process, and whoever carries bytes between hosts (asap_ray/backends/carrier.py) takes each
// message out of it, writes its ranges to the same places of the real buffer, and only then hands
// its header to the inbox there. Headers and bits never travel as memory: a transfer has no order
// inside it, and the receiver must see payload, header, bit.
//
//   AttentionComm -> MoEMirror   ... ranges, then header ...   MoEInbox -> MoEComm
//   AttentionComm <- AttentionInbox ... ranges, then header ... AttentionMirror <- MoEComm
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "asap/protocol.hpp"
#include "asap/shared_buffer.hpp"

namespace asap {

// Where a doorbell is: at an offset into a buffer.
using Bell = std::pair<std::shared_ptr<SharedBuffer>, std::int64_t>;

// Bytes at the same place of a mirror and of the real buffer.
struct Range {
  std::int64_t offset;
  std::int64_t num_bytes;
};

// What leaves a mirror.
struct Parcel {
  std::string header;
  std::vector<Range> ranges;
};

// What rank (i, j) writes to instead of a MoE device's buffer. One thread carries.
class MoEMirror {
 public:
  // Throws std::invalid_argument.
  MoEMirror(const Layout& layout, std::shared_ptr<SharedBuffer> buffer, std::int64_t dp_group,
            std::int64_t tp_rank);

  // The slot's message, once.
  std::optional<Parcel> take(std::int64_t slot);

  // The MoE device has read the slot's message.
  void credit(std::int64_t slot) const;

  // All ranges of all messages lie in it: what has to be registered.
  Range span() const {
    return {layout_.moe_regions + (dp_group_ * layout_.tp + tp_rank_) * layout_.region_bytes,
            layout_.region_bytes};
  }

  // Rings when there is a message.
  Bell bell() const { return {buffer_, layout_.moe_arrivals}; }

 private:
  const Layout layout_;
  const std::shared_ptr<SharedBuffer> buffer_;
  const MoEView view_;
  const std::int64_t dp_group_;
  const std::int64_t tp_rank_;
  std::uint64_t taken_[kNumSlots] = {};  // sequence of the last message taken
};

// What MoE device e writes to instead of an attention rank's buffer. One thread carries.
class AttentionMirror {
 public:
  // Throws std::invalid_argument.
  AttentionMirror(const Layout& layout, std::shared_ptr<SharedBuffer> buffer,
                  std::int64_t moe_device);

  // The reply in the slot, once.
  std::optional<Parcel> take(std::int64_t slot) const;

  // All ranges of all replies lie in it: what has to be registered.
  Range span() const {
    return {layout_.attention_results, layout_.attention_bytes - layout_.attention_results};
  }

  // Rings when there is a reply.
  Bell bell() const { return {buffer_, layout_.attention_replies}; }

 private:
  const Layout layout_;
  const std::shared_ptr<SharedBuffer> buffer_;
  const AttentionView view_;
  const std::int64_t moe_device_;
};

// Where a MoE device's process puts what came from ranks on other hosts. One thread carries.
class MoEInbox {
 public:
  // Throws std::invalid_argument.
  MoEInbox(const Layout& layout, std::shared_ptr<SharedBuffer> buffer);

  // The payload of a message is here, and this is its header. False, and nothing has happened,
  // while a message of the rank's dead predecessor is there. Throws std::invalid_argument.
  bool put(std::int64_t dp_group, std::int64_t tp_rank, std::int64_t slot,
           std::string_view header) const;

  // Whether the message that was put there has been read.
  bool is_read(std::int64_t dp_group, std::int64_t tp_rank, std::int64_t slot) const;

  // Rings when messages have been read.
  Bell bell() const { return {buffer_, layout_.moe_credits}; }

 private:
  const Layout layout_;
  const std::shared_ptr<SharedBuffer> buffer_;
  const MoEView view_;
};

// Where an attention rank's process puts what came from MoE devices on other hosts.
class AttentionInbox {
 public:
  // Throws std::invalid_argument.
  AttentionInbox(const Layout& layout, std::shared_ptr<SharedBuffer> buffer);

  // The rows of a reply are here, and this is its header. Throws std::invalid_argument.
  void put(std::int64_t slot, std::int64_t moe_device, std::string_view header) const;

 private:
  const Layout layout_;
  const std::shared_ptr<SharedBuffer> buffer_;
  const AttentionView view_;
};

// Doorbells of some buffers, for a thread that has other work beside waiting for them.
class Watch {
 public:
  // At least one. Throws std::invalid_argument.
  explicit Watch(std::vector<Bell> bells);

  // Sleep until one has rung since the last call, at most so long.
  void wait(double timeout_s);

 private:
  bool has_rung();

  const std::vector<Bell> bells_;
  std::vector<Doorbell*> doorbells_;
  std::vector<std::uint32_t> seen_;
};

}  // namespace asap
