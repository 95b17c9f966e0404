#include "asap/endpoint.hpp"

namespace asap {

std::string who(const RankId& id, std::int64_t slot, const Sent& sent) {
  return text("group ", id.dp_group, " rank ", id.tp_rank, " slot ", slot, " layer ", sent.layer);
}

void check_slot(std::int64_t slot) {
  ASAP_CHECK(slot >= 0 && slot < kNumSlots, "slot=", slot, " is not 0 or 1");
}

void check_rank(const Layout& layout, const RankId& id) {
  check_dp_group(layout, id.dp_group);
  ASAP_CHECK(id.tp_rank >= 0 && id.tp_rank < layout.tp, "tp_rank=", id.tp_rank, " is not in 0..",
             layout.tp - 1);
}

void check_dp_group(const Layout& layout, std::int64_t dp_group) {
  ASAP_CHECK(dp_group >= 0 && dp_group < layout.dp_groups, "dp_group=", dp_group, " is not in 0..",
             layout.dp_groups - 1);
}

void check_moe_device(const Layout& layout, std::int64_t moe_device) {
  ASAP_CHECK(moe_device >= 0 && moe_device < layout.moe_devices, "moe_device=", moe_device,
             " is not in 0..", layout.moe_devices - 1);
}

void check_row_bytes(const Layout& layout, std::int64_t element_bytes) {
  ASAP_CHECK(layout.row_bytes == layout.hidden * element_bytes, "row_bytes=", layout.row_bytes,
             " does not fit hidden=", layout.hidden, " of this row type");
}

void check_count(const char* what, std::int64_t count, const char* whose, std::int64_t wanted) {
  ASAP_CHECK(count == wanted, count, " ", what, " for ", wanted, " ", whose);
}

void check_bytes(const char* whose, std::int64_t num_bytes, std::int64_t needed) {
  ASAP_CHECK(num_bytes >= needed, whose, " has ", num_bytes, " bytes, the layout needs ", needed);
}

void check_message(const Layout& layout, const RankId& id, const NewMessage& message,
                   const Sent& mine, const Sent& other) {
  const auto [slot, layer, num_tokens] = message;
  const std::int64_t room = slot == 0 ? kNumSlots * layout.slot_rows : layout.slot_rows;
  if (num_tokens > room) {
    throw Overflow(text("group ", id.dp_group, " rank ", id.tp_rank, " slot ", slot, ": ",
                        num_tokens, " rows, room for ", room,
                        "; lower max_tokens or split the batch"));
  }
  ASAP_CHECK(!mine.in_flight, who(id, slot, mine),
             " still waits for its results; call combine_recv first");
  // So a solo message never meets rows of the other slot: whoever has replied has read them.
  ASAP_CHECK(!other.in_flight || (num_tokens <= layout.slot_rows && !other.solo),
             who(id, 1 - slot, other), " is in flight; a solo batch of more than ",
             layout.slot_rows, " rows uses both slots");
  ASAP_CHECK(layer >= 0 && layer < layout.num_layers, "layer=", layer, " is not in 0..",
             layout.num_layers - 1);
}

}  // namespace asap
