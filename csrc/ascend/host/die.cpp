#include "die.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

namespace asap::ascend {
namespace {

constexpr std::int64_t kStatusBytes = 64;

}  // namespace

Die::Die(const std::string& library, const std::string& kernels, int device)
    : acl_(library.c_str()), device_(device), kernels_(kernels) {
  acl_.init();
  const int count = acl_.num_devices();
  if (device < 0 || device >= count) {
    throw AclError("device " + std::to_string(device) + " of " + std::to_string(count) +
                   " visible Ascend devices; look at npu-smi info and ASCEND_RT_VISIBLE_DEVICES");
  }
  enter();
  cores_ = acl_.cores(device);
  binary_ = acl_.load(kernels + "/" + kKernelsFile);
}

void Die::enter() const {
  thread_local const Die* entered = nullptr;
  if (entered == this) return;
  acl_.set_device(device_);
  entered = this;
}

Function Die::function(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  auto entry = functions_.find(name);
  if (entry == functions_.end()) {
    entry = functions_.emplace(name, acl_.function(binary_, name)).first;
  }
  return entry->second;
}

void Die::launch(const std::string& name, int num_blocks, Stream stream,
                 std::initializer_list<Argument> arguments) const {
  std::vector<std::uint64_t> bits;
  for (const Argument& argument : arguments) bits.push_back(argument.bits);
  acl_.launch(function(name), static_cast<std::uint32_t>(num_blocks), stream, bits.data(),
              bits.size());
}

Memory::Memory(DiePtr die, std::int64_t num_bytes)
    : die_(std::move(die)), num_bytes_(std::max<std::int64_t>(num_bytes, 1)) {
  die_->enter();
  address_ = static_cast<std::byte*>(die_->acl().allocate(static_cast<std::size_t>(num_bytes_)));
  die_->acl().clear(address_, static_cast<std::size_t>(num_bytes_));
}

Memory::~Memory() { die_->acl().free(address_); }

void Memory::put(const void* from, std::int64_t num_bytes, std::int64_t offset) const {
  if (num_bytes == 0) return;
  die_->enter();
  die_->acl().copy(address_ + offset, from, static_cast<std::size_t>(num_bytes),
                   Copy::host_to_device);
}

void Memory::get(void* to, std::int64_t num_bytes, std::int64_t offset) const {
  if (num_bytes == 0) return;
  die_->enter();
  die_->acl().copy(to, address_ + offset, static_cast<std::size_t>(num_bytes),
                   Copy::device_to_host);
}

Lane::Lane(DiePtr die)
    : die_(std::move(die)),
      status_(die_, kStatusBytes * die_->cores().vector),
      stream_(die_->acl().create_stream()) {}

Lane::~Lane() { die_->acl().destroy_stream(stream_); }

std::vector<Status> Lane::run(const std::string& kernel, int num_blocks,
                              std::initializer_list<Argument> arguments) const {
  die_->enter();
  die_->launch(kernel, num_blocks, stream_, arguments);
  die_->acl().synchronize(stream_);
  std::vector<std::array<std::int32_t, kStatusBytes / 4>> words(
      static_cast<std::size_t>(num_blocks));
  status_.get(words.data(), kStatusBytes * num_blocks);
  std::vector<Status> statuses;
  for (const auto& word : words) statuses.push_back({word[0], word[1], word[2]});
  return statuses;
}

}  // namespace asap::ascend
