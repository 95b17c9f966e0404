#include "moe_comm.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace asap::ascend {
namespace {

// Head of an item, see csrc/ascend/kernels/item.h.
struct Head {
  std::int32_t dp_group, slot, layer, num_rows;
  std::uint64_t epoch, sequence;
};

}  // namespace

std::shared_ptr<Item> ItemPool::take(const DiePtr& die, const Layout& layout, RowType row_type) {
  std::unique_ptr<Item> item;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      item = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!item) item = std::make_unique<Item>(die, layout, row_type);
  return {item.release(), [pool = shared_from_this()](Item* used) {
            pool->give_back(std::unique_ptr<Item>(used));
          }};
}

void ItemPool::give_back(std::unique_ptr<Item> item) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(item));
}

MoEComm::MoEComm(DiePtr die, const Layout& layout, std::shared_ptr<SharedBuffer> buffer,
                 const std::vector<Buffers>& attention_buffers, std::int64_t moe_device,
                 const std::vector<std::uint64_t>& epochs, RowType row_type, Combine combine)
    : die_(std::move(die)),
      layout_(layout),
      buffer_(std::move(buffer)),
      attention_buffers_(attention_buffers.size()),
      moe_device_(moe_device),
      row_type_(row_type),
      combine_(combine),
      num_blocks_(std::max(1, transfer_cores(die_->cores()).vector)),
      receiving_(die_),
      sending_(die_),
      layout_memory_(die_, sizeof(Layout)),
      table_(die_, layout.dp_groups * layout.tp * 8),
      epochs_(die_, layout.dp_groups * 8),
      cursor_(die_, 64),
      abort_(die_, 64) {
  check_layout(layout_);
  check_row_bytes(layout_, element_bytes(row_type));
  check_moe_device(layout_, moe_device);
  check_bytes("the buffer", buffer_->num_bytes(), layout_.moe_bytes);
  check_count("epochs", std::ssize(epochs), "groups", layout_.dp_groups);
  check_count("attention_buffers", std::ssize(attention_buffers), "groups", layout_.dp_groups);
  layout_memory_.put(&layout_, sizeof(Layout));
  for (std::size_t i = 0; i < epochs.size(); ++i) {
    put_group(static_cast<std::int64_t>(i), attention_buffers[i], epochs[i]);
  }
}

void MoEComm::put_group(std::int64_t dp_group, const Buffers& buffers, std::uint64_t epoch) {
  check_count("attention_buffers", std::ssize(buffers), "ranks of a group", layout_.tp);
  std::vector<const void*> addresses;
  for (const auto& rank : buffers) {
    check_bytes("an attention buffer", rank->num_bytes(), layout_.attention_bytes);
    addresses.push_back(rank->address());
  }
  table_.put(addresses.data(), layout_.tp * 8, dp_group * layout_.tp * 8);
  epochs_.put(&epoch, sizeof(epoch), dp_group * 8);
  attention_buffers_[static_cast<std::size_t>(dp_group)] = buffers;
}

// The receiving kernel looks at the epoch past its cache, in every round.
void MoEComm::replace_group(std::int64_t dp_group, const Buffers& buffers, std::uint64_t epoch) {
  check_dp_group(layout_, dp_group);
  const std::lock_guard lock(mutex_);
  put_group(dp_group, buffers, epoch);
}

std::shared_ptr<Item> MoEComm::async_dispatch_recv(double timeout_s) {
  if (aborted_.load(std::memory_order_relaxed)) throw Closed(kClosedText);
  const std::shared_ptr<Item> item = pool_->take(die_, layout_, row_type_);
  Deadline deadline(timeout_s);
  while (true) {
    const Status status = receiving_.run(
        "asap_dispatch_recv", num_blocks_,
        {layout_memory_.address(), buffer_->address(), item->bytes.address(), epochs_.address(),
         cursor_.address(), abort_.address(), receiving_.status(), moe_device_,
         static_cast<std::int64_t>(combine_), cycles(patience_s(deadline))})[0];
    if (status.code == kOk) return taken(item);
    if (status.code == kClosed) throw Closed(kClosedText);
    if (status.code == kCorrupt) refuse(status, *item);
    if (status.code == kIdle) deadline.restart();
    if (deadline.left_s() <= 0) {
      throw PeerTimeout(text("dispatch_recv: MoE device ", moe_device_, " waited ",
                             seconds_text(timeout_s), " for ", missing_text(status)));
    }
  }
}

// What the host has to know of an item: its head and how many rows each expert has.
std::shared_ptr<Item> MoEComm::taken(std::shared_ptr<Item> item) const {
  const std::int64_t num_experts =
      first_place(layout_, moe_device_ + 1) - first_place(layout_, moe_device_);
  item->num_rows_E.resize(static_cast<std::size_t>(num_experts));
  std::vector<std::byte> bytes(static_cast<std::size_t>(kItemNumRowsE + num_experts * 4));
  item->bytes.get(bytes.data(), std::ssize(bytes));
  Head head{};
  std::memcpy(&head, bytes.data(), sizeof(head));
  std::memcpy(item->num_rows_E.data(), &bytes[kItemNumRowsE],
              static_cast<std::size_t>(num_experts) * 4);
  item->dp_group = head.dp_group;
  item->slot = head.slot;
  item->layer = head.layer;
  item->num_rows = head.num_rows;
  item->epoch = head.epoch;
  item->sequence = head.sequence;
  item->found_s = monotonic_s();
  item->num_tokens = 0;
  for (std::int64_t j = 0; j < layout_.tp; ++j) {
    std::int32_t num_rows = 0;
    item->bytes.get(&num_rows, sizeof(num_rows), item_part(layout_, j));
    item->num_tokens += num_rows;
  }
  return item;
}

void MoEComm::refuse(const Status& status, const Item& item) const {
  Head head{};
  item.bytes.get(&head, sizeof(head));
  throw CorruptMessage(text("group ", status.value, " rank ", status.what, " slot ", head.slot,
                            ": a header or row index contradicts the layout"));
}

std::string MoEComm::missing_text(const Status& status) const {
  std::string out;
  for (std::int64_t j = 0; j < layout_.tp; ++j) {
    if ((status.value & 1 << j) == 0) continue;
    out += text(out.empty() ? "" : ", ", "group ", status.what / kNumSlots, " rank ", j, " slot ",
                status.what % kNumSlots);
  }
  return out;
}

void MoEComm::async_combine_send(const Item& item, const Array& results) {
  if (!results.is_on_die) item.results.put(results.bytes, item.num_rows * layout_.row_bytes);
  const void* from = results.is_on_die ? results.bytes : item.results.address();
  const std::lock_guard lock(mutex_);
  sending_.run("asap_combine_send", num_blocks_,
               {layout_memory_.address(), item.bytes.address(), from, table_.address(),
                epochs_.address(), sending_.status(), moe_device_,
                static_cast<std::int64_t>(combine_), static_cast<std::int64_t>(row_type_)});
}

void MoEComm::abort() noexcept {
  aborted_.store(true, std::memory_order_relaxed);
  const std::int32_t one = 1;
  try {
    abort_.put(&one, sizeof(one));
  } catch (const AclError&) {  // the device is gone: whoever waits for it finds out
    return;
  }
}

}  // namespace asap::ascend
