#include "asap/attention_comm.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace asap {
namespace {

std::string list_text(const std::vector<std::int64_t>& numbers) {
  std::string out;
  for (const std::int64_t number : numbers) out += (out.empty() ? "" : ", ") + text(number);
  return out;
}

// What one device still has to get: these tokens, to here.
struct Copy {
  std::span<const std::int32_t> tokens;  // ascending
  Rows to;
  Store store;
};

}  // namespace

AttentionComm::AttentionComm(const Layout& layout, std::shared_ptr<SharedBuffer> buffer,
                             std::vector<std::shared_ptr<SharedBuffer>> moe_buffers,
                             std::span<const std::int32_t> expert_of_place, RankId id,
                             RowType row_type, Combine combine)
    : layout_(layout),
      buffer_(std::move(buffer)),
      id_(id),
      row_type_(row_type),
      view_(layout_, buffer_->bytes()),
      moe_buffers_(std::move(moe_buffers)),
      backpressure_s_(moe_buffers_.size()) {
  check_layout(layout_);
  check_row_bytes(layout_, element_bytes(row_type));
  check_rank(layout_, id);
  check_bytes("the buffer", buffer_->num_bytes(), layout_.attention_bytes);
  placement_ = placement_of(layout_, expert_of_place);
  check_count("moe_buffers", std::ssize(moe_buffers_), "MoE devices", layout_.moe_devices);
  for (const auto& moe : moe_buffers_) {
    check_bytes("a MoE buffer", moe->num_bytes(), layout_.moe_bytes);
    moe_.emplace_back(layout_, moe->bytes());
    was_clear_.push_back(false);
  }
  for (std::int64_t slot = 0; slot < kNumSlots; ++slot) {
    slots_.emplace_back(Routing(layout_, placement_, combine));
  }
}

AttentionComm::Slot& AttentionComm::slot_at(std::int64_t slot) {
  check_slot(slot);
  return slots_[static_cast<std::size_t>(slot)];
}

const AttentionComm::Slot& AttentionComm::slot_at(std::int64_t slot) const {
  return const_cast<AttentionComm*>(this)->slot_at(slot);
}

const MoEView& AttentionComm::moe_at(std::int64_t moe_device) const {
  return moe_[static_cast<std::size_t>(moe_device)];
}

std::int64_t AttentionComm::num_tokens(std::int64_t slot) const {
  return slot_at(slot).routing.num_tokens();
}

std::string AttentionComm::who(std::int64_t slot) const {
  return asap::who(id_, slot, slot_at(slot));
}

void AttentionComm::async_dispatch_send(std::int64_t slot, std::int64_t layer, const Rows& hidden,
                                        const Choices& choices, double timeout_s) {
  if (aborted_.load(std::memory_order_relaxed)) throw Closed(kClosedText);
  check_slot(slot);
  check_message(layout_, id_, {slot, layer, choices.num_tokens}, slot_at(slot), slot_at(1 - slot));
  begin_message(slot, layer, choices);
  Deadline deadline(timeout_s);
  while (!send_where_room({slot, hidden})) await_room(slot, deadline);
}

void AttentionComm::begin_message(std::int64_t slot, std::int64_t layer, const Choices& choices) {
  const std::lock_guard lock(mutex_);
  Slot& mine = slot_at(slot);
  mine.routing.plan(choices);
  mine.solo = choices.num_tokens > layout_.slot_rows;
  const std::int64_t room = (mine.solo ? kNumSlots : 1) * layout_.slot_results;
  if (mine.routing.num_replies() > room) {
    throw Overflow(text("group ", id_.dp_group, " rank ", id_.tp_rank, " slot ", slot, ": ",
                        mine.routing.num_replies(), " result rows, room for ", room,
                        "; was the layout made for this combine?"));
  }
  mine.layer = layer;
  mine.in_flight = true;
  ++mine.sequence;
  mine.unsent.resize(moe_.size());
  std::iota(mine.unsent.begin(), mine.unsent.end(), 0);
  mine.owing.clear();
  for (std::int64_t e = 0; e < layout_.moe_devices; ++e) {
    if (mine.routing.num_replies(e) > 0) mine.owing.push_back(e);
  }
}

// A solo message lies in both slots: before its first one a rank waits until whatever a dead
// incarnation sent is out of either. From then on it knows what it has sent itself.
bool AttentionComm::has_room(std::int64_t slot, std::int64_t moe_device) {
  std::vector<bool>::reference was_clear = was_clear_[static_cast<std::size_t>(moe_device)];
  if (!was_clear) {
    const MoEView& moe = moe_at(moe_device);
    for (std::int64_t each = 0; each < kNumSlots; ++each) {
      if (!has_credit(moe.word(id_.dp_group, each), bit(id_.tp_rank))) return false;
    }
    was_clear = true;
  }
  return has_credit(moe_at(moe_device).word(id_.dp_group, slot), bit(id_.tp_rank));
}

// Step 1 of async-dispatch-send (3.2.1): the devices with room go first. Whether all have the
// message now.
bool AttentionComm::send_where_room(const Send& send) {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t>& unsent = slot_at(send.slot).unsent;
  const auto busy =
      std::ranges::stable_partition(unsent, [&](std::int64_t e) { return has_room(send.slot, e); });
  const std::span ready(unsent.begin(), busy.begin());
  write_rows(send, ready);
  for (const std::int64_t e : ready) {
    write_header(send.slot, e);
    announce_message(moe_at(e), id_.dp_group, id_.tp_rank, send.slot);
  }
  unsent.erase(unsent.begin(), busy.begin());
  return unsent.empty();
}

void AttentionComm::move_if_patient(Deadline& deadline) const noexcept {
  deadline.count_from(std::min(monotonic_s(), patient_until_s_.load(std::memory_order_relaxed)));
}

void AttentionComm::await_room(std::int64_t slot, Deadline& deadline) {
  const std::vector<std::int64_t>& unsent = slot_at(slot).unsent;
  std::vector<std::shared_ptr<SharedBuffer>> watched;  // stay mapped, even if replaced meanwhile
  std::vector<Doorbell*> credits;
  {
    const std::lock_guard lock(mutex_);
    for (const std::int64_t e : unsent) {
      watched.push_back(moe_buffers_[static_cast<std::size_t>(e)]);
      credits.push_back(&moe_at(e).credits());
    }
  }
  const auto any_room = [&] {
    move_if_patient(deadline);
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(unsent, [&](std::int64_t e) { return has_room(slot, e); });
  };
  const double began_s = monotonic_s();
  const bool has_any = wait_until(credits, deadline, aborted_, any_room);
  count_wait(unsent, monotonic_s() - began_s);
  if (!has_any) {
    throw PeerTimeout(text("dispatch_send: ", who(slot), " waited ",
                           seconds_text(deadline.timeout_s()), " for room on MoE device(s) ",
                           list_text(unsent)));
  }
}

void AttentionComm::count_wait(const std::vector<std::int64_t>& devices, double seconds) {
  for (const std::int64_t e : devices) {
    // Relaxed: a number for whoever looks, which carries no data.
    std::atomic<double>& total_s = backpressure_s_[static_cast<std::size_t>(e)];
    const double share_s = seconds / static_cast<double>(devices.size());
    total_s.store(total_s.load(std::memory_order_relaxed) + share_s, std::memory_order_relaxed);
  }
}

std::vector<double> AttentionComm::backpressure_s() const {
  std::vector<double> seconds;
  for (const auto& total_s : backpressure_s_) {
    seconds.push_back(total_s.load(std::memory_order_relaxed));
  }
  return seconds;
}

// Step 2 of async-dispatch-send (3.2.1), some tokens at a time for all devices: a row that several
// devices want is read from memory once and from the cache after that.
void AttentionComm::write_rows(const Send& send, std::span<const std::int64_t> devices) {
  constexpr std::int64_t kBlockTokens = 32;
  const Routing& routing = slot_at(send.slot).routing;
  std::vector<Copy> copies;
  for (const std::int64_t e : devices) {
    const Message message = moe_at(e).message(id_.dp_group, id_.tp_rank, send.slot);
    const Rows to{message.rows, row_type_, layout_.hidden};
    const auto tokens = routing.tokens(e);
    copies.push_back({tokens, to, store_of(to, std::ssize(tokens), kStreamToPeer)});
  }
  for (std::int64_t begin = 0; begin < routing.num_tokens(); begin += kBlockTokens) {
    for (Copy& copy : copies) {
      const auto end = std::ranges::lower_bound(copy.tokens, begin + kBlockTokens);
      const auto count = static_cast<std::size_t>(end - copy.tokens.begin());
      gather_rows(copy.to, send.hidden, copy.tokens.first(count), copy.store);
      copy.tokens = copy.tokens.subspan(count);
      copy.to.bytes = copy.to.row(static_cast<std::int64_t>(count));
    }
  }
}

// The rest of step 2, and step 3. Relaxed: the bit publishes it.
void AttentionComm::write_header(std::int64_t slot, std::int64_t moe_device) {
  const Routing& routing = slot_at(slot).routing;
  const Message message = write_empty_header(slot, moe_device);
  const std::int64_t num_pairs = routing.num_pairs(moe_device);
  std::copy_n(routing.row_idx(moe_device), num_pairs, message.row_idx);
  std::copy_n(routing.weights(moe_device), num_pairs, message.weights);

  const std::int64_t first = first_place(layout_, moe_device);
  for (std::int64_t p = first; p < first_place(layout_, moe_device + 1); ++p) {
    message.num_rows_E[p - first] = static_cast<std::int32_t>(routing.num_pairs_of_place(p));
  }
  Header& header = *message.header;
  header.num_rows = static_cast<std::int32_t>(std::ssize(routing.tokens(moe_device)));
  header.num_pairs = static_cast<std::int32_t>(num_pairs);
  header.reply_offset = static_cast<std::int32_t>(routing.reply_offset(moe_device));
}

// Step 3 of a message without rows; where it was written.
Message AttentionComm::write_empty_header(std::int64_t slot, std::int64_t moe_device) {
  const Slot& mine = slot_at(slot);
  const Message message = moe_at(moe_device).message(id_.dp_group, id_.tp_rank, slot);
  std::fill_n(message.num_rows_E, layout_.max_local_experts, 0);
  Header& header = *message.header;
  header.epoch.store(id_.epoch, std::memory_order_relaxed);
  header.sequence.store(mine.sequence, std::memory_order_relaxed);
  header.layer = static_cast<std::int32_t>(mine.layer);
  header.num_rows = header.num_pairs = header.reply_offset = 0;
  return message;
}

bool AttentionComm::fits(std::int64_t slot, std::int64_t moe_device) const {
  const Slot& mine = slot_at(slot);
  const Header& header = view_.header(slot, moe_device);
  return header.num_rows == mine.routing.num_replies(moe_device) && header.layer == mine.layer;
}

void AttentionComm::check_reply(std::int64_t slot, std::int64_t moe_device) const {
  if (fits(slot, moe_device)) return;
  const Header& header = view_.header(slot, moe_device);
  throw CorruptMessage(text("combine_recv: ", who(slot), ": MoE device ", moe_device,
                            " replied with ", header.num_rows, " rows of layer ", header.layer,
                            ", expected ", slot_at(slot).routing.num_replies(moe_device)));
}

void AttentionComm::await_replies(std::int64_t slot, double timeout_s) {
  Slot& mine = slot_at(slot);
  Deadline deadline(timeout_s);
  const auto complete = [&] {
    move_if_patient(deadline);
    const std::lock_guard lock(mutex_);
    std::erase_if(mine.owing, [&](std::int64_t e) {
      if (!take_reply(view_, slot, e, id_.epoch, mine.sequence)) return false;
      check_reply(slot, e);
      return true;
    });
    return mine.owing.empty();
  };
  if (!wait_until({&view_.replies()}, deadline, aborted_, complete)) {
    throw PeerTimeout(text("combine_recv: ", who(slot), " waited ",
                           seconds_text(deadline.timeout_s()), " for MoE device(s) ",
                           list_text(mine.owing)));
  }
}

void AttentionComm::async_combine_recv(std::int64_t slot, const Rows& out, double timeout_s) {
  if (aborted_.load(std::memory_order_relaxed)) throw Closed(kClosedText);
  Slot& mine = slot_at(slot);
  ASAP_CHECK(mine.in_flight, "slot ", slot, " has no message in flight; call dispatch_send first");
  // Steps 1 and 2 of async-combine-recv (3.2.2).
  await_replies(slot, timeout_s);
  // Step 3. No flag follows: the next message to the device, sent after this, is the credit.
  const std::lock_guard lock(mutex_);
  sum_rows(out, {view_.results(slot), row_type_, layout_.hidden}, mine.routing.term_begin(),
           mine.routing.terms());
  mine.in_flight = false;
}

}  // namespace asap
