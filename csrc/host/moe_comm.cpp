#include "asap/moe_comm.hpp"

#include <algorithm>
#include <utility>

namespace asap {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// Written out only when something is wrong.
struct Sender {
  std::int64_t dp_group;
  std::int64_t tp_rank;
  std::int64_t slot;
};

void append(std::string& out, const Sender& sender) {
  out += text("group ", sender.dp_group, " rank ", sender.tp_rank, " slot ", sender.slot);
}

template <class... Parts>
void require(bool is_sound, const Parts&... parts) {
  if (!is_sound) throw CorruptMessage(text(parts...));
}

}  // namespace

Pick pick_of(std::string_view name) {
  if (name == "round_robin") return Pick::round_robin;
  ASAP_CHECK(name == "lowest_first", "pick '", name, "'; known: round_robin, lowest_first");
  return Pick::lowest_first;
}

MoEComm::MoEComm(const Layout& layout, std::shared_ptr<SharedBuffer> buffer,
                 const std::vector<Buffers>& attention_buffers, std::int64_t moe_device,
                 const std::vector<std::uint64_t>& epochs, RowTypes types, Combine combine)
    : layout_(layout),
      buffer_(std::move(buffer)),
      moe_device_(moe_device),
      types_(types),
      combine_(combine),
      view_(layout_, buffer_->bytes()) {
  check_layout(layout_);
  check_row_bytes(layout_, element_bytes(types.travel));
  ASAP_CHECK(types.compute == RowType::float32 || types.compute == types.travel,
             "compute_type must be float32 or the row type");
  check_moe_device(layout_, moe_device);
  check_bytes("the buffer", buffer_->num_bytes(), layout_.moe_bytes);
  check_count("epochs", std::ssize(epochs), "groups", layout_.dp_groups);
  check_count("attention_buffers", std::ssize(attention_buffers), "groups", layout_.dp_groups);
  for (std::size_t i = 0; i < epochs.size(); ++i) {
    groups_.push_back(group_of(attention_buffers[i], epochs[i]));
  }
}

std::int64_t MoEComm::num_local_experts() const {
  return first_place(layout_, moe_device_ + 1) - first_place(layout_, moe_device_);
}

std::shared_ptr<const MoEComm::Group> MoEComm::group_of(const Buffers& buffers,
                                                        std::uint64_t epoch) const {
  check_count("attention_buffers", std::ssize(buffers), "ranks of a group", layout_.tp);
  Group group{epoch, buffers, {}};
  for (const auto& rank : buffers) {
    check_bytes("an attention buffer", rank->num_bytes(), layout_.attention_bytes);
    group.ranks.emplace_back(layout_, rank->bytes());
  }
  return std::make_shared<const Group>(std::move(group));
}

std::shared_ptr<const MoEComm::Group> MoEComm::group_at(std::int64_t dp_group) const {
  const std::lock_guard lock(groups_mutex_);
  return groups_[at(dp_group)];
}

void MoEComm::replace_group(std::int64_t dp_group, const Buffers& buffers, std::uint64_t epoch) {
  check_dp_group(layout_, dp_group);
  std::shared_ptr<const Group> group = group_of(buffers, epoch);
  {
    const std::lock_guard lock(groups_mutex_);
    groups_[at(dp_group)].swap(group);
  }
  view_.arrivals().ring();  // the receiver drops what the old one left
}

// Clears the bits of dead incarnations, so that the living may use their rows, and of messages
// older than another rank's: after a restart of this device a rank sends its last one again, which
// its neighbour may have left behind (docs/verify.md, rule 5). Returns the others.
std::uint64_t MoEComm::drop_stale(const Place& place, std::uint64_t bits) {
  const std::uint64_t epoch = group_at(place.dp_group)->epoch;
  std::uint64_t fresh = 0;
  std::uint64_t newest = 0;
  for (std::int64_t j = 0; j < layout_.tp; ++j) {
    if ((bits & bit(j)) == 0) continue;
    const Header& header = *view_.message(place.dp_group, j, place.slot).header;
    if (header.epoch.load(std::memory_order_relaxed) != epoch) continue;
    const std::uint64_t sequence = header.sequence.load(std::memory_order_relaxed);
    if (sequence > newest) fresh = 0;
    if (sequence >= newest) fresh |= bit(j);
    newest = std::max(newest, sequence);
  }
  if (fresh != bits) give_credit(view_, place.dp_group, place.slot, bits & ~fresh);
  return fresh;
}

std::optional<MoEComm::Place> MoEComm::find_complete(Pick pick) {
  const std::int64_t count = layout_.dp_groups * kNumSlots;
  const std::int64_t start = pick == Pick::round_robin ? next_place_ : 0;
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t index = (start + n) % count;
    const Place place = place_at(index);
    const std::uint64_t bits = arrived(view_.word(place.dp_group, place.slot));
    if (bits == 0 || drop_stale(place, bits) != all_bits(layout_.tp)) continue;
    next_place_ = (index + 1) % count;
    return place;
  }
  return std::nullopt;
}

bool MoEComm::any_incomplete() const {
  for (std::int64_t index = 0; index < layout_.dp_groups * kNumSlots; ++index) {
    const auto [i, slot] = place_at(index);
    if (arrived(view_.word(i, slot)) != 0) return true;
  }
  return false;
}

// The ranks whose part of a message is missing.
std::string MoEComm::incomplete_text() const {
  std::string out;
  for (std::int64_t index = 0; index < layout_.dp_groups * kNumSlots; ++index) {
    const auto [i, slot] = place_at(index);
    const std::uint64_t bits = arrived(view_.word(i, slot));
    for (std::int64_t j = 0; bits != 0 && j < layout_.tp; ++j) {
      if ((bits & bit(j)) != 0) continue;
      out += text(out.empty() ? "" : ", ", "group ", i, " rank ", j, " slot ", slot);
    }
  }
  return out;
}

MoEComm::Place MoEComm::await_message(double timeout_s, Pick pick) {
  if (aborted_.load(std::memory_order_relaxed)) throw Closed(kClosedText);
  Deadline deadline(timeout_s);
  std::optional<Place> found;
  const auto ready = [&] {
    found = find_complete(pick);
    if (!found && !any_incomplete()) deadline.restart();
    return found.has_value();
  };
  if (!wait_until({&view_.arrivals()}, deadline, aborted_, ready)) {
    throw PeerTimeout(text("dispatch_recv: MoE device ", moe_device_, " waited ",
                           seconds_text(timeout_s), " for ", incomplete_text()));
  }
  return *found;
}

std::shared_ptr<Item> MoEComm::async_dispatch_recv(double timeout_s, Pick pick) {
  const Place place = await_message(timeout_s, pick);  // Step 1 of async-dispatch-recv (3.2.1)
  const std::shared_ptr<Item> item = pool_->take();
  item->found_s = monotonic_s();
  const auto credit = [&] {  // Steps 4 and 5
    give_credit(view_, place.dp_group, place.slot, all_bits(layout_.tp));
  };
  try {
    receive(place, *item);  // Steps 2 and 3
  } catch (const CorruptMessage&) {
    credit();
    throw;
  }
  credit();
  return item;
}

void MoEComm::receive(const Place& place, Item& item) const {
  read_headers(place, item);
  place_rows(item);
  item.resize(types_.compute, layout_.hidden);
  read_rows(place, item);
}

// Step 2 of async-dispatch-recv. Every value is copied first and checked after, so that a peer that
// writes out of turn cannot change it in between.
void MoEComm::read_headers(const Place& place, Item& item) const {
  item.dp_group = place.dp_group;
  item.slot = place.slot;
  item.num_tokens = 0;
  item.ranks.resize(at(layout_.tp));
  for (std::int64_t j = 0; j < layout_.tp; ++j) {
    const Header& header = *view_.message(place.dp_group, j, place.slot).header;
    const std::int64_t layer = header.layer;
    const std::uint64_t sequence = header.sequence.load(std::memory_order_relaxed);
    if (j == 0) {
      item.layer = layer;
      item.sequence = sequence;
      item.epoch = header.epoch.load(std::memory_order_relaxed);
    }
    const Sender sender{place.dp_group, j, place.slot};
    require(layer >= 0 && layer < layout_.num_layers, sender, ": layer=", layer, " is not in 0..",
            layout_.num_layers - 1);
    require(layer == item.layer && sequence == item.sequence, sender, ": layer=", layer,
            " sequence=", sequence, ", but rank 0 sent layer=", item.layer,
            " sequence=", item.sequence);
    read_header(place, j, item.ranks[at(j)]);
    item.num_tokens += item.ranks[at(j)].num_rows;
    read_row_idx(place, j, item.ranks[at(j)]);
  }
}

void MoEComm::read_header(const Place& place, std::int64_t j, RankPart& part) const {
  const Message message = view_.message(place.dp_group, j, place.slot);
  part.num_rows = message.header->num_rows;
  part.num_pairs = message.header->num_pairs;
  part.reply_offset = message.header->reply_offset;
  part.num_rows_E.assign(message.num_rows_E, message.num_rows_E + num_local_experts());

  const Sender sender{place.dp_group, j, place.slot};
  const std::int64_t halves = place.slot == 0 ? kNumSlots : 1;  // a solo batch fills both (3.3.2)
  require(part.num_rows >= 0 && part.num_rows <= halves * layout_.slot_rows, sender,
          ": num_rows=", part.num_rows, ", room for ", halves * layout_.slot_rows);
  require(part.num_pairs >= part.num_rows && part.num_pairs <= halves * layout_.slot_pairs, sender,
          ": num_pairs=", part.num_pairs, " of ", part.num_rows, " rows, room for ",
          halves * layout_.slot_pairs);
  std::int64_t sum = 0;
  for (const std::int32_t count : part.num_rows_E) {
    require(count >= 0 && count <= part.num_rows, sender, ": ", count, " rows of one expert, of ",
            part.num_rows);
    sum += count;
  }
  require(sum == part.num_pairs, sender, ": rows per expert sum to ", sum,
          ", num_pairs=", part.num_pairs);
  const std::int64_t room = halves * layout_.slot_results;
  require(part.reply_offset >= 0 && part.reply_offset <= room - num_replies(part), sender,
          ": reply_offset=", part.reply_offset, " of ", num_replies(part), " rows, room for ",
          room);
}

void MoEComm::read_row_idx(const Place& place, std::int64_t j, RankPart& part) const {
  const Message message = view_.message(place.dp_group, j, place.slot);
  part.row_idx.assign(message.row_idx, message.row_idx + part.num_pairs);
  for (const std::int32_t row : part.row_idx) {
    require(row >= 0 && row < part.num_rows, Sender{place.dp_group, j, place.slot},
            ": row_idx=", row, ", num_rows=", part.num_rows);
  }
}

// Expert by expert, rank by rank: where each rank's rows start in the item.
void MoEComm::place_rows(Item& item) const {
  const std::size_t num_experts = at(num_local_experts());
  item.num_rows_E.assign(num_experts, 0);
  for (RankPart& part : item.ranks) part.first_row_E.resize(num_experts);
  std::int32_t next = 0;
  for (std::size_t x = 0; x < num_experts; ++x) {
    for (RankPart& part : item.ranks) {
      part.first_row_E[x] = next;
      next += part.num_rows_E[x];
      item.num_rows_E[x] += part.num_rows_E[x];
    }
  }
  item.num_rows = next;
}

// Step 3 of async-dispatch-recv (3.2.1).
void MoEComm::read_rows(const Place& place, Item& item) const {
  const Store store = store_of(item.rows, item.num_rows, kStreamToSelf);
  for (std::int64_t j = 0; j < layout_.tp; ++j) {
    RankPart& part = item.ranks[at(j)];
    const Message message = view_.message(place.dp_group, j, place.slot);
    const Rows from{message.rows, types_.travel, layout_.hidden};
    std::size_t pair = 0;
    for (std::size_t x = 0; x < part.num_rows_E.size(); ++x) {
      const std::size_t count = at(part.num_rows_E[x]);
      const Rows to{item.rows.row(part.first_row_E[x]), types_.compute, layout_.hidden};
      gather_rows(to, from, std::span(part.row_idx).subspan(pair, count), store);
      pair += count;
    }
    if (combine_ == Combine::reduced) part.set_terms(message.weights);
  }
}

std::int64_t MoEComm::num_replies(const RankPart& part) const {
  return combine_ == Combine::reduced ? part.num_rows : part.num_pairs;
}

void MoEComm::write_results(const RankPart& part, const Rows& results, const Rows& to) const {
  if (combine_ == Combine::reduced) return sum_rows(to, results, part.term_begin, part.terms);
  const Store store = store_of(to, part.num_pairs, kStreamToPeer);
  std::int64_t pair = 0;
  for (std::size_t x = 0; x < part.num_rows_E.size(); ++x) {
    copy_rows({to.row(pair), to.type, to.hidden},
              {results.row(part.first_row_E[x]), results.type, results.hidden}, part.num_rows_E[x],
              store);
    pair += part.num_rows_E[x];
  }
}

void MoEComm::async_combine_send(const Item& item, const Rows& results) {
  const std::shared_ptr<const Group> group = group_at(item.dp_group);
  if (item.epoch != group->epoch) return;
  for (std::int64_t j = 0; j < layout_.tp; ++j) {
    const RankPart& part = item.ranks[at(j)];
    if (part.num_rows == 0) continue;  // it waits for no reply
    const AttentionView& attention = group->ranks[at(j)];
    // Step 1 of async-combine-send (3.2.2).
    const Rows area{attention.results(item.slot), types_.travel, layout_.hidden};
    write_results(part, results, {area.row(part.reply_offset), area.type, area.hidden});
    // Step 2.
    Header& header = attention.header(item.slot, moe_device_);
    header.layer = static_cast<std::int32_t>(item.layer);
    header.num_rows = static_cast<std::int32_t>(num_replies(part));
    header.num_pairs = static_cast<std::int32_t>(part.num_pairs);
    header.reply_offset = static_cast<std::int32_t>(part.reply_offset);
    publish(header, item.epoch, item.sequence);
    announce_reply(attention, item.slot, moe_device_);  // Steps 3 and 4
  }
}

}  // namespace asap
