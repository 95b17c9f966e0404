// What an endpoint is told and what it is asked for, checked alike on every kind of device: who it
// is, the sizes of buffers, the message that a rank is about to send.
#pragma once

#include <cstdint>
#include <string>

#include "asap/layout.hpp"

namespace asap {

// Who an attention rank is.
struct RankId {
  std::int64_t dp_group;  // i
  std::int64_t tp_rank;   // j
  std::uint64_t epoch;    // of this incarnation of the group
};

// The last message of one slot of a rank, wherever its rows are.
struct Sent {
  std::uint64_t sequence = 0;
  std::int64_t layer = 0;
  bool in_flight = false;
  bool solo = false;  // its rows fill both slots
};

// A message about to be sent.
struct NewMessage {
  std::int64_t slot, layer, num_tokens;
};

// "group 0 rank 1 slot 0 layer 3", for the text of an error.
std::string who(const RankId& id, std::int64_t slot, const Sent& sent);

// Each throws std::invalid_argument with the value and its limit.
void check_slot(std::int64_t slot);
void check_rank(const Layout& layout, const RankId& id);
void check_dp_group(const Layout& layout, std::int64_t dp_group);
void check_moe_device(const Layout& layout, std::int64_t moe_device);
void check_row_bytes(const Layout& layout, std::int64_t element_bytes);
// `what` has `count` members, one for each of `wanted` `whose`.
void check_count(const char* what, std::int64_t count, const char* whose, std::int64_t wanted);
void check_bytes(const char* whose, std::int64_t num_bytes, std::int64_t needed);

// Whether the message may be sent beside what is in flight in its slot and in the other one.
// Throws Overflow, too.
void check_message(const Layout& layout, const RankId& id, const NewMessage& message,
                   const Sent& mine, const Sent& other);

}  // namespace asap
