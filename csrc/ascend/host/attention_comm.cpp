#include "attention_comm.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace asap::ascend {
namespace {

constexpr std::int64_t kMaxPeers = 31;  // a word of the kernels is added to, its sign stays free

std::string list_text(Peers devices) {
  std::string out;
  for (std::int64_t e = 0; e < kMaxPeers; ++e) {
    if ((devices & 1 << e) != 0) out += (out.empty() ? "" : ", ") + text(e);
  }
  return out;
}

}  // namespace

AttentionComm::AttentionComm(DiePtr die, const Layout& layout, std::shared_ptr<SharedBuffer> buffer,
                             std::vector<std::shared_ptr<SharedBuffer>> moe_buffers,
                             std::span<const std::int32_t> expert_of_place, RankId id,
                             RowType row_type, Combine combine)
    : die_(std::move(die)),
      layout_(layout),
      buffer_(std::move(buffer)),
      moe_buffers_(std::move(moe_buffers)),
      id_(id),
      row_type_(row_type),
      combine_(combine),
      lane_(die_),
      layout_memory_(die_, sizeof(Layout)),
      placement_memory_(die_, placement_bytes(layout_)),
      table_(die_, std::ssize(moe_buffers_) * 8),
      abort_(die_, 64),
      backpressure_s_(static_cast<std::size_t>(layout.moe_devices)) {
  check_layout(layout_);
  check_row_bytes(layout_, element_bytes(row_type));
  check_rank(layout_, id);
  ASAP_CHECK(layout_.tp <= kMaxPeers && layout_.moe_devices <= kMaxPeers, "tp=", layout_.tp,
             " moe_devices=", layout_.moe_devices, ": a device of this kind tells at most ",
             kMaxPeers, " peers apart");
  check_bytes("the buffer", buffer_->num_bytes(), layout_.attention_bytes);
  check_count("moe_buffers", std::ssize(moe_buffers_), "MoE devices", layout_.moe_devices);
  std::vector<const void*> addresses;
  for (const auto& moe : moe_buffers_) {
    check_bytes("a MoE buffer", moe->num_bytes(), layout_.moe_bytes);
    addresses.push_back(moe->address());
  }
  layout_memory_.put(&layout_, sizeof(Layout));
  put_placement(placement_of(layout_, expert_of_place));
  table_.put(addresses.data(), std::ssize(addresses) * 8);
  const std::int64_t tokens = kNumSlots * layout_.slot_rows;
  for (Slot& slot : slots_) {
    slot.plan = std::make_unique<Memory>(die_, plan_bytes(layout_));
    slot.hidden = std::make_unique<Memory>(die_, tokens * layout_.row_bytes);
    slot.expert_ids = std::make_unique<Memory>(die_, tokens * layout_.top_k * 4);
    slot.weights = std::make_unique<Memory>(die_, tokens * layout_.top_k * 4);
  }
}

void AttentionComm::put_placement(const Placement& placement) const {
  const std::int64_t begin_bytes = std::ssize(placement.begin) * 4;
  placement_memory_.put(placement.begin.data(), begin_bytes);
  placement_memory_.put(placement.places.data(), std::ssize(placement.places) * 4, begin_bytes);
}

AttentionComm::Slot& AttentionComm::slot_at(std::int64_t slot) const {
  check_slot(slot);
  return slots_[static_cast<std::size_t>(slot)];
}

std::string AttentionComm::who(std::int64_t slot) const {
  return asap::who(id_, slot, slot_at(slot));
}

int AttentionComm::num_blocks(std::int64_t wanted) const {
  return static_cast<int>(std::clamp<std::int64_t>(wanted, 1, die_->cores().vector));
}

const void* AttentionComm::staged(const Memory& memory, const Array& array,
                                  std::int64_t num_bytes) const {
  if (array.is_on_die) return array.bytes;
  memory.put(array.bytes, num_bytes);
  return memory.address();
}

void AttentionComm::async_dispatch_send(std::int64_t slot, std::int64_t layer, const Routed& routed,
                                        double timeout_s) {
  if (aborted_.load(std::memory_order_relaxed)) throw Closed(kClosedText);
  check_slot(slot);
  check_message(layout_, id_, {slot, layer, routed.num_tokens}, slot_at(slot), slot_at(1 - slot));
  begin_message(slot, layer, routed);
  Deadline deadline(timeout_s);
  const Peers& unsent = slot_at(slot).unsent;
  while (unsent != 0) {
    const double began_s = monotonic_s();
    send_where_room(slot, deadline);
    if (unsent == 0) return;
    count_wait(unsent, monotonic_s() - began_s);
    if (is_over(deadline)) {
      throw PeerTimeout(text("dispatch_send: ", who(slot), " waited ", seconds_text(timeout_s),
                             " for room on MoE device(s) ", list_text(unsent)));
    }
  }
}

void AttentionComm::begin_message(std::int64_t slot, std::int64_t layer, const Routed& routed) {
  const std::lock_guard lock(mutex_);
  plan(slot, layer, routed);
  Slot& mine = slot_at(slot);
  mine.rows = staged(*mine.hidden, routed.hidden, routed.num_tokens * layout_.row_bytes);
  mine.unsent = static_cast<Peers>((std::int64_t{1} << layout_.moe_devices) - 1);
}

// It moves while a device is being replaced.
bool AttentionComm::is_over(Deadline& deadline) const noexcept {
  deadline.count_from(std::min(monotonic_s(), patient_until_s_.load(std::memory_order_relaxed)));
  return deadline.left_s() <= 0;
}

// One launch, which the devices that have room get the message from.
void AttentionComm::send_where_room(std::int64_t slot, const Deadline& deadline) {
  const std::lock_guard lock(mutex_);
  Peers& unsent = slot_at(slot).unsent;
  unsent = send(slot, {.devices = unsent, .empty = 0}, patience_s(deadline));
}

void AttentionComm::count_wait(Peers devices, double seconds) {
  const double share_s = seconds / std::popcount(static_cast<std::uint32_t>(devices));
  for (std::size_t e = 0; e < backpressure_s_.size(); ++e) {
    if ((devices & 1 << e) != 0) backpressure_s_[e] += share_s;
  }
}

void AttentionComm::plan(std::int64_t slot, std::int64_t layer, const Routed& routed) {
  Slot& mine = slot_at(slot);
  const std::int64_t num_bytes = routed.num_tokens * layout_.top_k * 4;
  const void* expert_ids = staged(*mine.expert_ids, routed.expert_ids, num_bytes);
  const void* weights = staged(*mine.weights, routed.weights, num_bytes);
  const Status status =
      lane_.run("asap_plan", 1,
                {layout_memory_.address(), placement_memory_.address(), mine.plan->address(),
                 expert_ids, weights, lane_.status(), routed.num_tokens, layer, mine.sequence + 1,
                 static_cast<std::int64_t>(combine_)})[0];
  if (status.code != kOk) refuse(status, expert_ids);
  mine.num_tokens = routed.num_tokens;
  mine.layer = layer;
  mine.solo = routed.num_tokens > layout_.slot_rows;
  mine.in_flight = true;
  ++mine.sequence;
}

void AttentionComm::refuse(const Status& status, const void* expert_ids) const {
  const std::int64_t token = status.what;
  ASAP_CHECK(token >= 0, "asap_plan refused the message: ", token, ", ", status.value);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(layout_.top_k));
  const std::size_t num_bytes = ids.size() * 4;
  die_->acl().copy(
      ids.data(),
      static_cast<const std::byte*>(expert_ids) + static_cast<std::size_t>(token) * num_bytes,
      num_bytes, Copy::device_to_host);
  for (const std::int32_t x : ids) {
    ASAP_CHECK(x >= 0 && x < layout_.num_experts, "token ", token, ": expert ", x, " is not in 0..",
               layout_.num_experts - 1);
    ASAP_CHECK(std::ranges::count(ids, x) == 1, "token ", token, ": expert ", x,
               " is chosen twice");
  }
  throw AclError(text("asap_plan refused token ", token, ", and nothing is wrong with it"));
}

// The devices that had no room in time. From then on the others are known to hold nothing of a dead
// incarnation.
Peers AttentionComm::send(std::int64_t slot, const Targets& targets, double timeout_s) {
  const Slot& mine = slot_at(slot);
  const auto statuses =
      lane_.run("asap_dispatch_send", num_blocks(layout_.moe_devices),
                {layout_memory_.address(), mine.plan->address(), mine.rows, table_.address(),
                 abort_.address(), lane_.status(), id_.dp_group, id_.tp_rank, slot, id_.epoch,
                 static_cast<std::int64_t>(combine_), cycles(timeout_s), targets.devices,
                 targets.empty, was_clear_});
  Peers left = 0;
  for (const Status& status : statuses) {
    if (status.code == kClosed) throw Closed(kClosedText);
    left |= status.value;
  }
  was_clear_ |= targets.devices & ~left;
  return left;
}

Status AttentionComm::receive(std::int64_t slot, const void* out, const Deadline& deadline) {
  const std::lock_guard lock(mutex_);
  const Slot& mine = slot_at(slot);
  return lane_.run(
      "asap_combine_recv", num_blocks(mine.num_tokens),
      {layout_memory_.address(), mine.plan->address(), buffer_->address(), out, abort_.address(),
       lane_.status(), slot, id_.epoch, static_cast<std::int64_t>(combine_),
       cycles(patience_s(deadline)), static_cast<std::int64_t>(row_type_)})[0];
}

void AttentionComm::async_combine_recv(std::int64_t slot, void* out, bool is_on_die,
                                       double timeout_s) {
  if (aborted_.load(std::memory_order_relaxed)) throw Closed(kClosedText);
  Slot& mine = slot_at(slot);
  ASAP_CHECK(mine.in_flight, "slot ", slot, " has no message in flight; call dispatch_send first");
  Deadline deadline(timeout_s);
  // Of the rows that have been sent nobody has need once their sums are written.
  const void* rows = is_on_die ? out : mine.hidden->address();
  while (true) {
    const Status status = receive(slot, rows, deadline);
    if (status.code == kOk) break;
    if (status.code == kClosed) throw Closed(kClosedText);
    if (status.code == kCorrupt) {
      throw CorruptMessage(text("combine_recv: ", who(slot), ": MoE device ", status.what,
                                " replied with other rows or another layer than it was sent"));
    }
    if (is_over(deadline)) {
      throw PeerTimeout(text("combine_recv: ", who(slot), " waited ", seconds_text(timeout_s),
                             " for MoE device(s) ", list_text(status.value)));
    }
  }
  if (!is_on_die) mine.hidden->get(out, mine.num_tokens * layout_.row_bytes);
  mine.in_flight = false;
}

std::vector<double> AttentionComm::backpressure_s() const {
  return {backpressure_s_.begin(), backpressure_s_.end()};
}

void AttentionComm::abort() noexcept {
  aborted_.store(true, std::memory_order_relaxed);
  const std::int32_t one = 1;
  try {
    abort_.put(&one, sizeof(one));
  } catch (const AclError&) {  // the device is gone: whoever waits for it finds out
    return;
  }
}

}  // namespace asap::ascend
