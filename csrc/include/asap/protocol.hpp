// The four primitives (3.2) as an order of steps, and the flags and headers that carry it.
//
// async-dispatch-send, attention rank (i, j) to each MoE device e; devices may take steps together:
//   1  wait until bit j of word (i, slot) is clear        acquire: the last message has been read
//   2  write rows, row indices and weights into the slot
//   3  write the header, even if it says zero rows
//   4  set bit j                                          release: payload before bit
//   5  ring the arrivals
// async-dispatch-recv, MoE device e:
//   1  wait for a word (i, slot) with all T bits set      acquire: bit before payload
//   2  copy and check the T headers; drop a dead epoch
//   3  move the rows to private memory, grouped by expert
//   4  clear the word                                     release: reads before the credit
//   5  ring the credits
// async-combine-send, MoE device e to each rank (i, j) that sent rows; never waits:
//   1  write the result rows at the rank's reply offset
//   2  write the reply header                             release: payload before header
//   3  set bit e of the slot                              release: header before bit
//   4  ring the replies
// async-combine-recv, attention rank (i, j):
//   1  wait for the bits of all devices that owe a reply
//   2  take each bit, check its header; drop a reply to an older message
//   3  sum each token's rows
// Other device kinds carry the same step numbers.
#pragma once

#include <atomic>
#include <cstdint>

#include "asap/layout.hpp"
#include "asap/wait.hpp"

namespace asap {

using Word = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);

// Of a message and of a reply. A reply's epoch and sequence also guard its payload, see `publish`.
struct Header {
  std::atomic<std::uint64_t> epoch;
  std::atomic<std::uint64_t> sequence;
  std::int32_t layer;
  std::int32_t num_rows;
  std::int32_t num_pairs;
  std::int32_t reply_offset;
};
static_assert(sizeof(Header) <= kHeaderBytes);

// One message in a MoE device's buffer. Pairs are grouped by local expert.
struct Message {
  Header* header;
  std::int32_t* num_rows_E;  // per local expert
  std::int32_t* row_idx;     // per pair, into `rows`
  float* weights;            // per pair
  std::byte* rows;
};

// A MoE device's buffer.
class MoEView {
 public:
  MoEView(const Layout& layout, std::byte* bytes) : layout_(&layout), bytes_(bytes) {}

  Doorbell& arrivals() const { return at<Doorbell>(layout_->moe_arrivals); }
  Doorbell& credits() const { return at<Doorbell>(layout_->moe_credits); }
  Word& word(std::int64_t i, std::int64_t slot) const {
    return at<Word>(layout_->moe_bitmaps + (i * kNumSlots + slot) * kFlagBytes);
  }
  Message message(std::int64_t i, std::int64_t j, std::int64_t slot) const {
    const Layout& l = *layout_;
    const std::int64_t region = l.moe_regions + (i * l.tp + j) * l.region_bytes;
    const std::int64_t header = region + l.region_headers + slot * l.header_bytes;
    const std::int64_t pairs = slot * l.slot_pairs * 4;
    return {&at<Header>(header), &at<std::int32_t>(header + kHeaderBytes),
            &at<std::int32_t>(region + l.region_row_idx + pairs),
            &at<float>(region + l.region_weights + pairs),
            bytes_ + region + l.region_rows + slot * l.slot_rows * l.row_bytes};
  }

 private:
  template <class T>
  T& at(std::int64_t offset) const {
    return *reinterpret_cast<T*>(bytes_ + offset);
  }

  const Layout* layout_;
  std::byte* bytes_;
};

// An attention rank's buffer.
class AttentionView {
 public:
  AttentionView(const Layout& layout, std::byte* bytes) : layout_(&layout), bytes_(bytes) {}

  Doorbell& replies() const { return at<Doorbell>(layout_->attention_replies); }
  Word& word(std::int64_t slot, std::int64_t moe_device) const {
    return at<Word>(layout_->attention_bitmaps +
                    (slot * layout_->bitmap_words + moe_device / kWordBits) * kFlagBytes);
  }
  Header& header(std::int64_t slot, std::int64_t moe_device) const {
    return at<Header>(layout_->attention_headers +
                      (slot * layout_->moe_devices + moe_device) * kHeaderBytes);
  }
  std::byte* results(std::int64_t slot) const {
    return bytes_ + layout_->attention_results + slot * layout_->slot_results * layout_->row_bytes;
  }

 private:
  template <class T>
  T& at(std::int64_t offset) const {
    return *reinterpret_cast<T*>(bytes_ + offset);
  }

  const Layout* layout_;
  std::byte* bytes_;
};

inline std::uint64_t bit(std::int64_t index) noexcept {
  return std::uint64_t{1} << (index % kWordBits);
}

inline std::uint64_t all_bits(std::int64_t count) noexcept {
  return count == kWordBits ? ~std::uint64_t{0} : bit(count) - 1;
}

// Step 1 of async-dispatch-send. Acquire: the receiver's reads of the last message are over.
inline bool has_credit(const Word& word, std::uint64_t bits) noexcept {
  return (word.load(std::memory_order_acquire) & bits) == 0;
}

// Steps 4 and 5 of async-dispatch-send. Release: the payload must be visible before the bit.
inline void announce_message(const MoEView& moe, std::int64_t i, std::int64_t j,
                             std::int64_t slot) noexcept {
  moe.word(i, slot).fetch_or(bit(j), std::memory_order_release);
  moe.arrivals().ring();
}

// Step 1 of async-dispatch-recv. Acquire: a bit is seen before what it announces is read.
inline std::uint64_t arrived(const Word& word) noexcept {
  return word.load(std::memory_order_acquire);
}

// Steps 4 and 5 of async-dispatch-recv. Release: our reads must be over before the credit is seen.
inline void give_credit(const MoEView& moe, std::int64_t i, std::int64_t slot,
                        std::uint64_t bits) noexcept {
  moe.word(i, slot).fetch_and(~bits, std::memory_order_release);
  moe.credits().ring();
}

// Step 2 of async-combine-send. Release, twice: a receiver that reads both new values (and it may,
// before the bit, when the bit of a dropped reply was still set) must see the payload.
inline void publish(Header& header, std::uint64_t epoch, std::uint64_t sequence) noexcept {
  header.epoch.store(epoch, std::memory_order_release);
  header.sequence.store(sequence, std::memory_order_release);
}

// Steps 3 and 4 of async-combine-send. Release: the header must be visible before the bit.
inline void announce_reply(const AttentionView& attention, std::int64_t slot,
                           std::int64_t moe_device) noexcept {
  attention.word(slot, moe_device).fetch_or(bit(moe_device), std::memory_order_release);
  attention.replies().ring();
}

// Steps 1 and 2 of async-combine-recv: whether the reply to this very message is there.
// Taking the bit first means that the bit of a dropped reply cannot hide the next one.
// Acquire: bit before header, header before payload.
inline bool take_reply(const AttentionView& attention, std::int64_t slot, std::int64_t moe_device,
                       std::uint64_t epoch, std::uint64_t sequence) noexcept {
  Word& word = attention.word(slot, moe_device);
  if ((word.load(std::memory_order_relaxed) & bit(moe_device)) == 0) return false;
  word.fetch_and(~bit(moe_device), std::memory_order_acquire);
  const Header& header = attention.header(slot, moe_device);
  return header.sequence.load(std::memory_order_acquire) == sequence &&
         header.epoch.load(std::memory_order_acquire) == epoch;
}

}  // namespace asap
