// What an attention rank does when a MoE device has died and come back (docs/failures.md). The
// numbered rules are those of docs/verify.md.
#include <algorithm>
#include <cstring>
#include <utility>

#include "asap/attention_comm.hpp"

namespace asap {
namespace {

bool contains(const std::vector<std::int64_t>& devices, std::int64_t moe_device) {
  return std::ranges::find(devices, moe_device) != devices.end();
}

}  // namespace

void AttentionComm::replace_device(std::int64_t moe_device, std::shared_ptr<SharedBuffer> buffer) {
  check_moe_device(layout_, moe_device);
  check_bytes("a MoE buffer", buffer->num_bytes(), layout_.moe_bytes);
  const auto e = static_cast<std::size_t>(moe_device);
  const MoEView next(layout_, buffer->bytes());
  {
    const std::lock_guard lock(mutex_);
    moe_buffers_[e].swap(buffer);
    const MoEView dead = std::exchange(moe_[e], next);
    was_clear_[e] = true;  // its buffer is new
    for (std::int64_t slot = 0; slot < kNumSlots; ++slot) {
      take_last_reply(slot, moe_device);
      send_again(slot, moe_device, dead);
    }
  }
  patient_until_s_.store(monotonic_s(), std::memory_order_relaxed);
  // Wakes a wait for room on the dead device, and one for replies that have just been taken.
  MoEView(layout_, buffer->bytes()).credits().ring();
  view_.replies().ring();
}

// Rule 2: what the dead device had answered counts, and its bit must not be taken for the
// successor's. A reply that does not fit is asked for again.
void AttentionComm::take_last_reply(std::int64_t slot, std::int64_t moe_device) {
  Slot& mine = slot_at(slot);
  const bool is_there = take_reply(view_, slot, moe_device, id_.epoch, mine.sequence);
  if (is_there && fits(slot, moe_device)) std::erase(mine.owing, moe_device);
}

// Rules 3 and 4, steps 2 to 4 of async-dispatch-send. The rows are still where only this rank
// writes: in the buffer of the dead device, which stays mapped. Its bit in the new one is clear.
void AttentionComm::send_again(std::int64_t slot, std::int64_t moe_device, const MoEView& dead) {
  const Slot& mine = slot_at(slot);
  const bool was_sent = mine.sequence > 0 && !contains(mine.unsent, moe_device);
  const bool is_owed = contains(mine.owing, moe_device);
  if (!was_sent || (!is_owed && layout_.tp == 1)) return;
  if (is_owed) {
    const std::byte* from = dead.message(id_.dp_group, id_.tp_rank, slot).rows;
    std::byte* to = moe_at(moe_device).message(id_.dp_group, id_.tp_rank, slot).rows;
    const auto num_rows = mine.routing.tokens(moe_device).size();
    std::memcpy(to, from, num_rows * static_cast<std::size_t>(layout_.row_bytes));
    write_header(slot, moe_device);
  } else {
    write_empty_header(slot, moe_device);
  }
  announce_message(moe_at(moe_device), id_.dp_group, id_.tp_rank, slot);
}

}  // namespace asap
