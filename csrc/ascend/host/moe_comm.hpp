// The MoE side of the primitives on one die, for one device e, and the super kernel between them;
// the counterpart of csrc/include/asap/moe_comm.hpp.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "attention_comm.hpp"

namespace asap::ascend {

// One layer of one batch, on the die: rows grouped by local expert, and room for their results.
struct Item {
  Item(const DiePtr& die, const Layout& layout, RowType row_type)
      : bytes(die, item_bytes(layout)),
        results(die, max_item_rows(layout) * layout.row_bytes),
        row_bytes(layout.row_bytes),
        rows_begin(item_rows(layout)),
        is_float32(row_type == RowType::float32) {}

  std::int64_t dp_group = 0, slot = 0, layer = 0, num_rows = 0;
  std::int64_t num_tokens = 0;  // rows that all T ranks sent
  double found_s = 0;           // when it was found complete, monotonic
  std::uint64_t epoch = 0, sequence = 0;
  std::vector<std::int32_t> num_rows_E;  // per local expert; they sum to num_rows
  const Memory bytes, results;
  const std::int64_t row_bytes, rows_begin;
  const bool is_float32;
};

// Items return here when their last user lets go: device memory is not given back in between.
class ItemPool : public std::enable_shared_from_this<ItemPool> {
 public:
  std::shared_ptr<Item> take(const DiePtr& die, const Layout& layout, RowType row_type);

 private:
  void give_back(std::unique_ptr<Item> item);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Item>> free_;
};

// The three streams of 3.4.1 may be three threads. `abort` and `replace_group` are for any
// thread.
class MoEComm {
 public:
  using Buffers = std::vector<std::shared_ptr<SharedBuffer>>;

  // `attention_buffers` by group i and rank j, `epochs` by group.
  // Throws std::invalid_argument, AclError.
  MoEComm(DiePtr die, const Layout& layout, std::shared_ptr<SharedBuffer> buffer,
          const std::vector<Buffers>& attention_buffers, std::int64_t moe_device,
          const std::vector<std::uint64_t>& epochs, RowType row_type, Combine combine);

  // The clock runs only while a message is incomplete: an idle device waits for ever.
  // Throws CorruptMessage (the message is dropped, others go on), PeerTimeout, Closed, AclError.
  std::shared_ptr<Item> async_dispatch_recv(double timeout_s);

  // Results of every row of the item, wherever they are. Never waits.
  void async_combine_send(const Item& item, const Array& results);

  // See csrc/include/asap/moe_comm.hpp. Waits for a reply under way.
  void replace_group(std::int64_t dp_group, const Buffers& buffers, std::uint64_t epoch);
  void abort() noexcept;

  const Layout& layout() const { return layout_; }
  RowType row_type() const { return row_type_; }
  std::int64_t moe_device() const { return moe_device_; }

 private:
  void put_group(std::int64_t dp_group, const Buffers& buffers, std::uint64_t epoch);
  std::shared_ptr<Item> taken(std::shared_ptr<Item> item) const;
  [[noreturn]] void refuse(const Status& status, const Item& item) const;
  std::string missing_text(const Status& status) const;

  const DiePtr die_;
  const Layout layout_;
  const std::shared_ptr<SharedBuffer> buffer_;
  // Held while results are written: `replace_group` changes where to.
  TurnMutex mutex_;
  std::vector<Buffers> attention_buffers_;
  const std::int64_t moe_device_;
  const RowType row_type_;
  const Combine combine_;
  const int num_blocks_;
  const Lane receiving_, sending_;
  const Memory layout_memory_, table_, epochs_, cursor_, abort_;
  const std::shared_ptr<ItemPool> pool_ = std::make_shared<ItemPool>();
  std::atomic<bool> aborted_{false};
};

}  // namespace asap::ascend
