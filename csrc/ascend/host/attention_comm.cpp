#include "attention_comm.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "asap/errors.hpp"
#include "asap/layout.hpp"
#include "asap/wait.hpp"

namespace asap::ascend {
namespace {

constexpr std::int64_t kMaxPeers = 31;  // a word of the kernels is added to, its sign stays free

std::string list_text(std::int32_t devices) {
  std::string out;
  for (std::int64_t e = 0; e < kMaxPeers; ++e) {
    if ((devices & 1 << e) != 0) out += (out.empty() ? "" : ", ") + text(e);
  }
  return out;
}

}  // namespace

AttentionComm::AttentionComm(DiePtr die, const Layout& layout, std::shared_ptr<SharedBuffer> buffer,
                             std::vector<std::shared_ptr<SharedBuffer>> moe_buffers, RankId id,
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
      table_(die_, std::ssize(moe_buffers_) * 8),
      abort_(die_, 64),
      backpressure_s_(static_cast<std::size_t>(layout.moe_devices)) {
  check_layout(layout_);
  ASAP_CHECK(layout_.tp <= kMaxPeers && layout_.moe_devices <= kMaxPeers, "tp=", layout_.tp,
             " moe_devices=", layout_.moe_devices, ": a device of this kind tells at most ",
             kMaxPeers, " peers apart");
  ASAP_CHECK(buffer_->num_bytes() >= layout_.attention_bytes, "the buffer has ",
             buffer_->num_bytes(), " bytes, the layout needs ", layout_.attention_bytes);
  ASAP_CHECK(std::ssize(moe_buffers_) == layout_.moe_devices, moe_buffers_.size(),
             " moe_buffers for ", layout_.moe_devices, " MoE devices");
  std::vector<const void*> addresses;
  for (const auto& moe : moe_buffers_) {
    ASAP_CHECK(moe->num_bytes() >= layout_.moe_bytes, "a MoE buffer has ", moe->num_bytes(),
               " bytes, the layout needs ", layout_.moe_bytes);
    addresses.push_back(moe->address());
  }
  layout_memory_.put(&layout_, sizeof(Layout));
  table_.put(addresses.data(), std::ssize(addresses) * 8);
  const std::int64_t tokens = kNumSlots * layout_.slot_rows;
  for (Slot& slot : slots_) {
    slot.plan = std::make_unique<Memory>(die_, plan_bytes(layout_));
    slot.hidden = std::make_unique<Memory>(die_, tokens * layout_.row_bytes);
    slot.expert_ids = std::make_unique<Memory>(die_, tokens * layout_.top_k * 4);
    slot.weights = std::make_unique<Memory>(die_, tokens * layout_.top_k * 4);
  }
}

AttentionComm::Slot& AttentionComm::slot_at(std::int64_t slot) const {
  ASAP_CHECK(slot >= 0 && slot < kNumSlots, "slot=", slot, " is not 0 or 1");
  return slots_[static_cast<std::size_t>(slot)];
}

std::string AttentionComm::who(std::int64_t slot) const {
  return text("group ", id_.dp_group, " rank ", id_.tp_rank, " slot ", slot, " layer ",
              slot_at(slot).layer);
}

int AttentionComm::num_blocks(std::int64_t wanted) const {
  return static_cast<int>(std::clamp<std::int64_t>(wanted, 1, die_->cores().vector));
}

void AttentionComm::check_room(std::int64_t slot, std::int64_t num_tokens) const {
  const Slot& mine = slot_at(slot);
  const Slot& other = slot_at(1 - slot);
  const std::int64_t room = slot == 0 ? kNumSlots * layout_.slot_rows : layout_.slot_rows;
  if (num_tokens > room) {
    throw Overflow(text("group ", id_.dp_group, " rank ", id_.tp_rank, " slot ", slot, ": ",
                        num_tokens, " rows, room for ", room,
                        "; lower max_tokens or split the batch"));
  }
  ASAP_CHECK(!mine.in_flight, who(slot), " still waits for its results; call combine_recv first");
  ASAP_CHECK(!other.in_flight || (num_tokens <= layout_.slot_rows && !other.solo), who(1 - slot),
             " is in flight; a solo batch of more than ", layout_.slot_rows,
             " rows uses both slots");
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
  check_room(slot, routed.num_tokens);
  ASAP_CHECK(layer >= 0 && layer < layout_.num_layers, "layer=", layer, " is not in 0..",
             layout_.num_layers - 1);
  plan(slot, layer, routed);
  const void* hidden =
      staged(*slot_at(slot).hidden, routed.hidden, routed.num_tokens * layout_.row_bytes);
  const Deadline deadline(timeout_s);
  auto devices = static_cast<std::int32_t>((std::int64_t{1} << layout_.moe_devices) - 1);
  while (true) {
    const double began_s = monotonic_s();
    devices =
        send_to(slot, hidden, devices, std::min(kPatienceS, std::max(0.0, deadline.left_s())));
    if (devices == 0) return;
    const double share_s =
        (monotonic_s() - began_s) / std::popcount(static_cast<std::uint32_t>(devices));
    for (std::size_t e = 0; e < backpressure_s_.size(); ++e) {
      if ((devices & 1 << e) != 0) backpressure_s_[e] += share_s;
    }
    if (deadline.left_s() <= 0) {
      throw PeerTimeout(text("dispatch_send: ", who(slot), " waited ", seconds_text(timeout_s),
                             " for room on MoE device(s) ", list_text(devices)));
    }
  }
}

void AttentionComm::plan(std::int64_t slot, std::int64_t layer, const Routed& routed) {
  Slot& mine = slot_at(slot);
  const std::int64_t num_bytes = routed.num_tokens * layout_.top_k * 4;
  const void* expert_ids = staged(*mine.expert_ids, routed.expert_ids, num_bytes);
  const void* weights = staged(*mine.weights, routed.weights, num_bytes);
  const Status status = lane_.run(
      "asap_plan", 1,
      {layout_memory_.address(), mine.plan->address(), expert_ids, weights, lane_.status(),
       routed.num_tokens, layer, mine.sequence + 1, static_cast<std::int64_t>(combine_)})[0];
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

// The devices that had no room in time.
std::int32_t AttentionComm::send_to(std::int64_t slot, const void* hidden, std::int32_t devices,
                                    double timeout_s) const {
  const Slot& mine = slot_at(slot);
  const auto statuses =
      lane_.run("asap_dispatch_send", num_blocks(layout_.moe_devices),
                {layout_memory_.address(), mine.plan->address(), hidden, table_.address(),
                 abort_.address(), lane_.status(), id_.dp_group, id_.tp_rank, slot, id_.epoch,
                 static_cast<std::int64_t>(combine_), cycles(timeout_s), devices});
  std::int32_t left = 0;
  for (const Status& status : statuses) {
    if (status.code == kClosed) throw Closed(kClosedText);
    left |= status.value;
  }
  return left;
}

Status AttentionComm::receive(std::int64_t slot, const void* out, double timeout_s) const {
  const Slot& mine = slot_at(slot);
  return lane_.run(
      "asap_combine_recv", num_blocks(mine.num_tokens),
      {layout_memory_.address(), mine.plan->address(), buffer_->address(), out, abort_.address(),
       lane_.status(), slot, id_.epoch, static_cast<std::int64_t>(combine_), cycles(timeout_s),
       static_cast<std::int64_t>(row_type_)})[0];
}

void AttentionComm::async_combine_recv(std::int64_t slot, void* out, bool is_on_die,
                                       double timeout_s) {
  if (aborted_.load(std::memory_order_relaxed)) throw Closed(kClosedText);
  Slot& mine = slot_at(slot);
  ASAP_CHECK(mine.in_flight, "slot ", slot, " has no message in flight; call dispatch_send first");
  const Deadline deadline(timeout_s);
  const void* rows = is_on_die ? out : mine.hidden->address();  // which have been sent
  while (true) {
    const Status status =
        receive(slot, rows, std::min(kPatienceS, std::max(0.0, deadline.left_s())));
    if (status.code == kOk) break;
    if (status.code == kClosed) throw Closed(kClosedText);
    if (status.code == kCorrupt) {
      throw CorruptMessage(text("combine_recv: ", who(slot), ": MoE device ", status.what,
                                " replied with other rows or another layer than it was sent"));
    }
    if (deadline.left_s() <= 0) {
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
