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

}  // namespace

AttentionComm::AttentionComm(const Layout& layout, std::shared_ptr<SharedBuffer> buffer,
                             std::vector<std::shared_ptr<SharedBuffer>> moe_buffers, RankId id,
                             RowType row_type, Combine combine)
    : layout_(layout),
      buffer_(std::move(buffer)),
      moe_buffers_(std::move(moe_buffers)),
      id_(id),
      row_type_(row_type),
      view_(layout_, buffer_->bytes()) {
  check_layout(layout_);
  ASAP_CHECK(layout_.row_bytes == layout_.hidden * element_bytes(row_type),
             "row_bytes=", layout_.row_bytes, " does not fit hidden=", layout_.hidden,
             " of this row type");
  ASAP_CHECK(id.dp_group >= 0 && id.dp_group < layout_.dp_groups, "dp_group=", id.dp_group,
             " is not in 0..", layout_.dp_groups - 1);
  ASAP_CHECK(id.tp_rank >= 0 && id.tp_rank < layout_.tp, "tp_rank=", id.tp_rank, " is not in 0..",
             layout_.tp - 1);
  ASAP_CHECK(buffer_->num_bytes() >= layout_.attention_bytes, "the buffer has ",
             buffer_->num_bytes(), " bytes, the layout needs ", layout_.attention_bytes);
  ASAP_CHECK(std::ssize(moe_buffers_) == layout_.moe_devices, moe_buffers_.size(),
             " moe_buffers for ", layout_.moe_devices, " MoE devices");
  for (const auto& moe : moe_buffers_) {
    ASAP_CHECK(moe->num_bytes() >= layout_.moe_bytes, "a MoE buffer has ", moe->num_bytes(),
               " bytes, the layout needs ", layout_.moe_bytes);
    moe_.emplace_back(layout_, moe->bytes());
  }
  for (std::int64_t slot = 0; slot < kNumSlots; ++slot) {
    slots_.push_back({.routing = Routing(layout_, combine), .owing = {}});
  }
}

AttentionComm::Slot& AttentionComm::slot_at(std::int64_t slot) {
  ASAP_CHECK(slot >= 0 && slot < kNumSlots, "slot=", slot, " is not 0 or 1");
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
  return text("group ", id_.dp_group, " rank ", id_.tp_rank, " slot ", slot, " layer ",
              slot_at(slot).layer);
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
  // So a solo message never meets rows of the other slot: whoever has replied has read them.
  ASAP_CHECK(!other.in_flight || (num_tokens <= layout_.slot_rows && !other.solo), who(1 - slot),
             " is in flight; a solo batch of more than ", layout_.slot_rows,
             " rows uses both slots");
}

void AttentionComm::async_dispatch_send(std::int64_t slot, std::int64_t layer, const Rows& hidden,
                                        const Choices& choices, double timeout_s) {
  if (aborted_.load(std::memory_order_relaxed)) throw Closed(kClosedText);
  check_room(slot, choices.num_tokens);
  ASAP_CHECK(layer >= 0 && layer < layout_.num_layers, "layer=", layer, " is not in 0..",
             layout_.num_layers - 1);
  begin_message(slot, layer, choices);
  std::vector<std::int64_t> devices(moe_.size());
  std::iota(devices.begin(), devices.end(), 0);
  send_to({slot, hidden}, std::move(devices), Deadline(timeout_s));
}

void AttentionComm::begin_message(std::int64_t slot, std::int64_t layer, const Choices& choices) {
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
  mine.owing.clear();
  for (std::int64_t e = 0; e < layout_.moe_devices; ++e) {
    if (mine.routing.num_replies(e) > 0) mine.owing.push_back(e);
  }
}

bool AttentionComm::has_room(std::int64_t slot, std::int64_t moe_device) const {
  return has_credit(moe_at(moe_device).word(id_.dp_group, slot), bit(id_.tp_rank));
}

void AttentionComm::send_to(const Send& send, std::vector<std::int64_t> pending,
                            const Deadline& deadline) {
  const auto room = [&](std::int64_t e) { return has_room(send.slot, e); };
  while (true) {
    std::erase_if(pending, [&](std::int64_t e) {
      if (!room(e)) return false;  // Step 1 of async-dispatch-send
      write_message(send, e);      // Steps 2 and 3
      announce_message(moe_at(e), id_.dp_group, id_.tp_rank, send.slot);
      return true;
    });
    if (pending.empty()) return;
    std::vector<Doorbell*> credits;
    for (const std::int64_t e : pending) {
      credits.push_back(&moe_at(e).credits());
    }
    if (!wait_until(credits, deadline, aborted_,
                    [&] { return std::ranges::any_of(pending, room); })) {
      throw PeerTimeout(text("dispatch_send: ", who(send.slot), " waited ",
                             seconds_text(deadline.timeout_s()), " for room on MoE device(s) ",
                             list_text(pending)));
    }
  }
}

void AttentionComm::write_message(const Send& send, std::int64_t moe_device) {
  const Slot& slot = slot_at(send.slot);
  const Routing& routing = slot.routing;
  const Message message = moe_at(moe_device).message(id_.dp_group, id_.tp_rank, send.slot);
  const auto tokens = routing.tokens(moe_device);
  const auto num_pairs = static_cast<std::size_t>(routing.num_pairs(moe_device));

  // Step 2 of async-dispatch-send (3.2.1).
  const Rows rows{message.rows, row_type_, layout_.hidden};
  gather_rows(rows, send.hidden, tokens, store_of(rows, std::ssize(tokens), kStreamToPeer));
  std::copy_n(routing.row_idx(moe_device), num_pairs, message.row_idx);
  std::copy_n(routing.weights(moe_device), num_pairs, message.weights);

  // Step 3. Relaxed: the bit publishes it.
  const std::int64_t first = first_expert(layout_, moe_device);
  for (std::int64_t x = first; x < first_expert(layout_, moe_device + 1); ++x) {
    message.num_rows_E[x - first] = static_cast<std::int32_t>(routing.num_pairs_of_expert(x));
  }
  Header& header = *message.header;
  header.epoch.store(id_.epoch, std::memory_order_relaxed);
  header.sequence.store(slot.sequence, std::memory_order_relaxed);
  header.layer = static_cast<std::int32_t>(slot.layer);
  header.num_rows = static_cast<std::int32_t>(tokens.size());
  header.num_pairs = static_cast<std::int32_t>(num_pairs);
  header.reply_offset = static_cast<std::int32_t>(routing.reply_offset(moe_device));
}

void AttentionComm::check_reply(std::int64_t slot, std::int64_t moe_device) const {
  const Slot& mine = slot_at(slot);
  const Header& header = view_.header(slot, moe_device);
  const std::int64_t expected = mine.routing.num_replies(moe_device);
  if (header.num_rows != expected || header.layer != mine.layer) {
    throw CorruptMessage(text("combine_recv: ", who(slot), ": MoE device ", moe_device,
                              " replied with ", header.num_rows, " rows of layer ", header.layer,
                              ", expected ", expected));
  }
}

void AttentionComm::await_replies(std::int64_t slot, double timeout_s) {
  Slot& mine = slot_at(slot);
  const Deadline deadline(timeout_s);
  const auto complete = [&] {
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
  sum_rows(out, {view_.results(slot), row_type_, layout_.hidden}, mine.routing.term_begin(),
           mine.routing.terms());
  mine.in_flight = false;
}

}  // namespace asap
