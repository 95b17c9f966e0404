#include "moe_comm.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "asap/errors.hpp"
#include "asap/layout.hpp"
#include "asap/wait.hpp"

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
  ASAP_CHECK(moe_device >= 0 && moe_device < layout_.moe_devices, "moe_device=", moe_device,
             " is not in 0..", layout_.moe_devices - 1);
  ASAP_CHECK(buffer_->num_bytes() >= layout_.moe_bytes, "the buffer has ", buffer_->num_bytes(),
             " bytes, the layout needs ", layout_.moe_bytes);
  ASAP_CHECK(std::ssize(epochs) == layout_.dp_groups, epochs.size(), " epochs for ",
             layout_.dp_groups, " groups");
  ASAP_CHECK(std::ssize(attention_buffers) == layout_.dp_groups, attention_buffers.size(),
             " groups of attention_buffers for ", layout_.dp_groups, " groups");
  std::vector<const void*> addresses;
  for (const Buffers& group : attention_buffers) {
    ASAP_CHECK(std::ssize(group) == layout_.tp, group.size(), " attention_buffers in a group of ",
               layout_.tp, " ranks");
    for (const auto& rank : group) {
      attention_buffers_.push_back(rank);
      addresses.push_back(rank->address());
    }
  }
  layout_memory_.put(&layout_, sizeof(Layout));
  table_.put(addresses.data(), std::ssize(addresses) * 8);
  epochs_.put(epochs.data(), std::ssize(epochs) * 8);
}

std::shared_ptr<Item> MoEComm::async_dispatch_recv(double timeout_s) {
  if (aborted_.load(std::memory_order_relaxed)) throw Closed(kClosedText);
  const std::shared_ptr<Item> item = pool_->take(die_, layout_, row_type_);
  Deadline deadline(timeout_s);
  while (true) {
    const double patience_s = std::min(kPatienceS, std::max(0.0, deadline.left_s()));
    const Status status =
        receiving_.run("asap_dispatch_recv", num_blocks_,
                       {layout_memory_.address(), buffer_->address(), item->bytes.address(),
                        epochs_.address(), cursor_.address(), abort_.address(), receiving_.status(),
                        moe_device_, static_cast<std::int64_t>(combine_), cycles(patience_s)})[0];
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
      first_expert(layout_, moe_device_ + 1) - first_expert(layout_, moe_device_);
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
  sending_.run("asap_combine_send", num_blocks_,
               {layout_memory_.address(), item.bytes.address(), from, table_.address(),
                epochs_.address(), sending_.status(), moe_device_,
                static_cast<std::int64_t>(combine_), static_cast<std::int64_t>(row_type_)});
}

void MoEComm::set_epoch(std::int64_t dp_group, std::uint64_t epoch) {
  ASAP_CHECK(dp_group >= 0 && dp_group < layout_.dp_groups, "dp_group=", dp_group, " is not in 0..",
             layout_.dp_groups - 1);
  epochs_.put(&epoch, sizeof(epoch), dp_group * 8);
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
