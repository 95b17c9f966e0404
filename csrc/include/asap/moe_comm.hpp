// The MoE side of the primitives, for one device e: async-dispatch-recv, async-combine-send.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "asap/endpoint.hpp"
#include "asap/item.hpp"
#include "asap/protocol.hpp"
#include "asap/routing.hpp"
#include "asap/shared_buffer.hpp"

namespace asap {

// Which of the ready messages is next.
enum class Pick { round_robin, lowest_first };

// By its name. Throws std::invalid_argument.
Pick pick_of(std::string_view name);

// How rows travel, and how this device computes: in float32 or in the type that travels.
struct RowTypes {
  RowType travel;
  RowType compute;
};

// The three streams of 3.4.1 may be three threads: one that receives, one that computes on items,
// one that sends. `abort` and `replace_group` are for any thread.
class MoEComm {
 public:
  using Buffers = std::vector<std::shared_ptr<SharedBuffer>>;

  // `attention_buffers` by group i and rank j, `epochs` by group. Throws std::invalid_argument.
  MoEComm(const Layout& layout, std::shared_ptr<SharedBuffer> buffer,
          const std::vector<Buffers>& attention_buffers, std::int64_t moe_device,
          const std::vector<std::uint64_t>& epochs, RowTypes types, Combine combine);

  // Wait for a group whose T ranks have all sent, take its rows, give the credit (3.2.1).
  // Messages of a dead epoch are dropped. The clock of `timeout_s` runs only while some group's
  // message is incomplete: an idle device waits for ever.
  // Throws CorruptMessage (the message is dropped, others go on), PeerTimeout, Closed.
  std::shared_ptr<Item> async_dispatch_recv(double timeout_s, Pick pick);

  // Write the results of an item, a row a row, to the ranks that sent it (3.2.2). Never waits.
  // Results for a dead epoch are dropped.
  void async_combine_send(const Item& item, const Rows& results);

  // From now on group i is a new incarnation with buffers of its own, one a rank; what the old one
  // left behind is dropped. No rank of the old one may live, and none of the new one may send
  // before every device has been told. Throws std::invalid_argument.
  void replace_group(std::int64_t dp_group, const Buffers& buffers, std::uint64_t epoch);

  // Every wait, present or later, throws Closed within 60 ms.
  void abort() noexcept { aborted_.store(true, std::memory_order_relaxed); }

  const Layout& layout() const { return layout_; }
  RowTypes types() const { return types_; }

 private:
  struct Place {
    std::int64_t dp_group;
    std::int64_t slot;
  };
  // An incarnation of a group. A reply under way keeps the buffers of the one it is for.
  struct Group {
    std::uint64_t epoch;
    Buffers buffers;
    std::vector<AttentionView> ranks;
  };
  static Place place_at(std::int64_t index) { return {index / kNumSlots, index % kNumSlots}; }

  std::shared_ptr<const Group> group_of(const Buffers& buffers, std::uint64_t epoch) const;
  std::shared_ptr<const Group> group_at(std::int64_t dp_group) const;

  std::optional<Place> find_complete(Pick pick);
  bool any_incomplete() const;
  std::string incomplete_text() const;
  std::uint64_t drop_stale(const Place& place, std::uint64_t bits);
  Place await_message(double timeout_s, Pick pick);

  void receive(const Place& place, Item& item) const;
  void read_headers(const Place& place, Item& item) const;
  void read_header(const Place& place, std::int64_t j, RankPart& part) const;
  void read_row_idx(const Place& place, std::int64_t j, RankPart& part) const;
  void place_rows(Item& item) const;
  void read_rows(const Place& place, Item& item) const;

  void write_results(const RankPart& part, const Rows& results, const Rows& to) const;
  std::int64_t num_replies(const RankPart& part) const;
  std::int64_t num_local_experts() const;

  const Layout layout_;
  const std::shared_ptr<SharedBuffer> buffer_;
  const std::int64_t moe_device_;
  const RowTypes types_;
  const Combine combine_;
  const MoEView view_;
  mutable std::mutex groups_mutex_;
  std::vector<std::shared_ptr<const Group>> groups_;
  const std::shared_ptr<ItemPool> pool_ = std::make_shared<ItemPool>();
  std::int64_t next_place_ = 0;  // of the receiving thread
  std::atomic<bool> aborted_{false};
};

}  // namespace asap
