#include "asap/mirror.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "asap/endpoint.hpp"

namespace asap {
namespace {

std::string bytes_of(const Header& header, std::int64_t num_bytes) {
  return {reinterpret_cast<const char*>(&header), static_cast<std::size_t>(num_bytes)};
}

// All but epoch and sequence, which others may be reading.
void fill(Header& header, std::string_view from) {
  constexpr std::size_t kSkipped = offsetof(Header, layer);
  std::memcpy(reinterpret_cast<std::byte*>(&header) + kSkipped, from.data() + kSkipped,
              from.size() - kSkipped);
}

std::uint64_t word_at(std::string_view header, std::size_t offset) {
  std::uint64_t value;
  std::memcpy(&value, header.data() + offset, sizeof value);
  return value;
}

std::uint64_t epoch_of(std::string_view header) { return word_at(header, offsetof(Header, epoch)); }

std::uint64_t sequence_of(std::string_view header) {
  return word_at(header, offsetof(Header, sequence));
}

}  // namespace

MoEMirror::MoEMirror(const Layout& layout, std::shared_ptr<SharedBuffer> buffer,
                     std::int64_t dp_group, std::int64_t tp_rank)
    : layout_(layout),
      buffer_(std::move(buffer)),
      view_(layout_, buffer_->bytes()),
      dp_group_(dp_group),
      tp_rank_(tp_rank) {
  check_layout(layout_);
  check_rank(layout_, {dp_group, tp_rank, 0});
  check_bytes("a mirror of a MoE buffer", buffer_->num_bytes(), layout_.moe_bytes);
}

std::optional<Parcel> MoEMirror::take(std::int64_t slot) {
  check_slot(slot);
  if (has_credit(view_.word(dp_group_, slot), bit(tp_rank_))) return std::nullopt;
  const Message message = view_.message(dp_group_, tp_rank_, slot);
  const std::uint64_t sequence = message.header->sequence.load(std::memory_order_relaxed);
  if (sequence == taken_[slot]) return std::nullopt;
  taken_[slot] = sequence;
  const auto range = [&](const void* begin, std::int64_t num_bytes) {
    return Range{static_cast<const std::byte*>(begin) - buffer_->bytes(), num_bytes};
  };
  const Header& header = *message.header;
  Parcel parcel{bytes_of(header, layout_.header_bytes), {}};
  if (header.num_rows > 0) {
    parcel.ranges = {range(message.row_idx, std::int64_t{header.num_pairs} * 4),
                     range(message.weights, std::int64_t{header.num_pairs} * 4),
                     range(message.rows, header.num_rows * layout_.row_bytes)};
  }
  return parcel;
}

void MoEMirror::credit(std::int64_t slot) const {
  check_slot(slot);
  give_credit(view_, dp_group_, slot, bit(tp_rank_));
}

AttentionMirror::AttentionMirror(const Layout& layout, std::shared_ptr<SharedBuffer> buffer,
                                 std::int64_t moe_device)
    : layout_(layout),
      buffer_(std::move(buffer)),
      view_(layout_, buffer_->bytes()),
      moe_device_(moe_device) {
  check_layout(layout_);
  check_moe_device(layout_, moe_device);
  check_bytes("a mirror of an attention buffer", buffer_->num_bytes(), layout_.attention_bytes);
}

std::optional<Parcel> AttentionMirror::take(std::int64_t slot) const {
  check_slot(slot);
  Word& word = view_.word(slot, moe_device_);
  if ((word.load(std::memory_order_relaxed) & bit(moe_device_)) == 0) return std::nullopt;
  word.fetch_and(~bit(moe_device_), std::memory_order_acquire);  // bit before header and payload
  const Header& header = view_.header(slot, moe_device_);
  const std::int64_t offset = view_.results(slot) - buffer_->bytes();
  return Parcel{
      bytes_of(header, kHeaderBytes),
      {{offset + header.reply_offset * layout_.row_bytes, header.num_rows * layout_.row_bytes}}};
}

MoEInbox::MoEInbox(const Layout& layout, std::shared_ptr<SharedBuffer> buffer)
    : layout_(layout), buffer_(std::move(buffer)), view_(layout_, buffer_->bytes()) {
  check_layout(layout_);
  check_bytes("a MoE buffer", buffer_->num_bytes(), layout_.moe_bytes);
}

// Steps 3 to 5 of async-dispatch-send, in the name of a rank on another host.
bool MoEInbox::put(std::int64_t dp_group, std::int64_t tp_rank, std::int64_t slot,
                   std::string_view header) const {
  ASAP_CHECK(std::ssize(header) == layout_.header_bytes, "a header of ", header.size(),
             " bytes, the layout has ", layout_.header_bytes);
  if (!is_read(dp_group, tp_rank, slot)) return false;
  Header& mine = *view_.message(dp_group, tp_rank, slot).header;
  fill(mine, header);
  mine.epoch.store(epoch_of(header), std::memory_order_relaxed);  // the bit publishes both
  mine.sequence.store(sequence_of(header), std::memory_order_relaxed);
  announce_message(view_, dp_group, tp_rank, slot);
  return true;
}

bool MoEInbox::is_read(std::int64_t dp_group, std::int64_t tp_rank, std::int64_t slot) const {
  check_rank(layout_, {dp_group, tp_rank, 0});
  check_slot(slot);
  return has_credit(view_.word(dp_group, slot), bit(tp_rank));
}

AttentionInbox::AttentionInbox(const Layout& layout, std::shared_ptr<SharedBuffer> buffer)
    : layout_(layout), buffer_(std::move(buffer)), view_(layout_, buffer_->bytes()) {
  check_layout(layout_);
  check_bytes("an attention buffer", buffer_->num_bytes(), layout_.attention_bytes);
}

// Steps 2 to 4 of async-combine-send, in the name of a MoE device on another host.
void AttentionInbox::put(std::int64_t slot, std::int64_t moe_device,
                         std::string_view header) const {
  check_slot(slot);
  check_moe_device(layout_, moe_device);
  ASAP_CHECK(std::ssize(header) == kHeaderBytes, "a reply header of ", header.size(),
             " bytes, not ", kHeaderBytes);
  Header& mine = view_.header(slot, moe_device);
  fill(mine, header);
  publish(mine, epoch_of(header), sequence_of(header));
  announce_reply(view_, slot, moe_device);
}

Watch::Watch(std::vector<Bell> bells) : bells_(std::move(bells)) {
  ASAP_CHECK(!bells_.empty(), "no doorbell to watch");
  for (const auto& [buffer, offset] : bells_) {
    check_area("doorbell", offset, kFlagBytes, kFlagBytes, buffer->num_bytes());
    doorbells_.push_back(reinterpret_cast<Doorbell*>(buffer->bytes() + offset));
  }
  seen_.resize(doorbells_.size());
}

bool Watch::has_rung() {
  bool any = false;
  for (std::size_t d = 0; d < doorbells_.size(); ++d) {
    const std::uint32_t rings = doorbells_[d]->rings.load(std::memory_order_seq_cst);
    any |= std::exchange(seen_[d], rings) != rings;
  }
  return any;
}

void Watch::wait(double timeout_s) {
  const Sleeper sleeper(doorbells_);
  if (!has_rung()) sleeper.sleep(timeout_s);
}

}  // namespace asap
