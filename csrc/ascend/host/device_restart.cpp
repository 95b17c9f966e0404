// What an attention rank does when a MoE device has died and come back; the counterpart of
// csrc/host/device_restart.cpp. The numbered rules are those of docs/verify.md.
#include <utility>

#include "attention_comm.hpp"

namespace asap::ascend {

void AttentionComm::replace_device(std::int64_t moe_device, std::shared_ptr<SharedBuffer> buffer) {
  check_moe_device(layout_, moe_device);
  check_bytes("a MoE buffer", buffer->num_bytes(), layout_.moe_bytes);
  const void* address = buffer->address();
  {
    const std::lock_guard lock(mutex_);
    moe_buffers_[static_cast<std::size_t>(moe_device)].swap(buffer);
    table_.put(&address, sizeof(address), moe_device * 8);
    was_clear_ |= 1 << moe_device;  // its buffer is new
    for (std::int64_t slot = 0; slot < kNumSlots; ++slot) {
      if (slot_at(slot).sequence == 0) continue;
      send_again(slot, moe_device, take_last_reply(slot, moe_device));
    }
  }
  patient_until_s_.store(monotonic_s(), std::memory_order_relaxed);
}

// Rule 2. The devices that still owe a reply.
Peers AttentionComm::take_last_reply(std::int64_t slot, std::int64_t moe_device) const {
  return lane_
      .run("asap_take_last_reply", 1,
           {layout_memory_.address(), slot_at(slot).plan->address(), buffer_->address(),
            lane_.status(), slot, id_.epoch, static_cast<std::int64_t>(combine_), moe_device})[0]
      .value;
}

// Rules 3 and 4, steps 2 to 4 of async-dispatch-send. The plan and the rows are still in this
// rank's own memory: that of the dead device may be gone with it.
void AttentionComm::send_again(std::int64_t slot, std::int64_t moe_device, Peers owing) {
  const Peers device = 1 << moe_device;
  const bool was_sent = (slot_at(slot).unsent & device) == 0;
  const bool is_owed = (owing & device) != 0;
  if (!was_sent || (!is_owed && layout_.tp == 1)) return;
  const Peers left = send(slot, {.devices = device, .empty = is_owed ? 0 : device}, 0);
  ASAP_CHECK(left == 0, "MoE device ", moe_device, ": its successor's buffer is not a new one");
}

}  // namespace asap::ascend
