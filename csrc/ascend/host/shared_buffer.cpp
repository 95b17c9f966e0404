#include "shared_buffer.hpp"

#include <cstddef>
#include <map>
#include <mutex>

namespace asap::ascend {
namespace {

constexpr std::size_t kHandleBytes = 128;  // a key of one server is shorter
constexpr std::size_t kHugePageBytes = 2 << 20;

std::size_t whole_pages(std::int64_t num_bytes) {
  const auto size = static_cast<std::size_t>(num_bytes);
  return (size + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

}  // namespace

std::shared_ptr<SharedBuffer> SharedBuffer::create(DiePtr die, std::int64_t num_bytes,
                                                   Reach reach) {
  die->enter();
  const Acl& acl = die->acl();
  const std::size_t size = whole_pages(num_bytes);
  std::shared_ptr<SharedBuffer> buffer(new SharedBuffer(std::move(die), num_bytes));
  buffer->is_own_ = true;
  if (reach == Reach::supernode) {
    buffer->physical_ = acl.allocate_physical(buffer->die_->device(), size);
    buffer->address_ = static_cast<std::byte*>(acl.map(buffer->physical_, size));
    buffer->key_ = acl.export_handle(buffer->physical_);
  } else {
    buffer->address_ = static_cast<std::byte*>(acl.allocate(size));
    buffer->key_ = acl.export_key(buffer->address_, size);
  }
  acl.clear(buffer->address_, size);
  return buffer;
}

// The runtime closes what it opened by key, not by address, so a process opens a key once.
std::shared_ptr<SharedBuffer> SharedBuffer::open(DiePtr die, const std::string& key,
                                                 std::int64_t num_bytes) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<SharedBuffer>> opened;
  const std::lock_guard lock(mutex);
  std::weak_ptr<SharedBuffer>& entry = opened[key];
  if (std::shared_ptr<SharedBuffer> buffer = entry.lock()) return buffer;
  const std::shared_ptr<SharedBuffer> buffer = map_peer(std::move(die), key, num_bytes);
  entry = buffer;
  return buffer;
}

std::shared_ptr<SharedBuffer> SharedBuffer::map_peer(DiePtr die, const std::string& key,
                                                     std::int64_t num_bytes) {
  die->enter();
  const Acl& acl = die->acl();
  std::shared_ptr<SharedBuffer> buffer(new SharedBuffer(std::move(die), num_bytes));
  buffer->key_ = key;
  if (key.size() == kHandleBytes) {
    buffer->physical_ = acl.open_handle(key);
    buffer->address_ = static_cast<std::byte*>(acl.map(buffer->physical_, whole_pages(num_bytes)));
  } else {
    buffer->address_ = static_cast<std::byte*>(acl.open_key(key));
  }
  return buffer;
}

SharedBuffer::~SharedBuffer() {
  const Acl& acl = die_->acl();
  if (address_ == nullptr) return;
  if (physical_ != nullptr) {
    acl.unmap(address_, physical_);
    return;
  }
  if (!key_.empty()) acl.close_key(key_);
  if (is_own_) acl.free(address_);
}

}  // namespace asap::ascend
