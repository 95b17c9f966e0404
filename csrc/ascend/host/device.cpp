#include "device.hpp"

#include <utility>
#include <vector>

namespace asap::ascend {

std::unique_ptr<SharedBuffer> SharedBuffer::create(const Acl& acl, std::size_t num_bytes) {
  void* memory = acl.allocate(num_bytes);
  std::unique_ptr<SharedBuffer> buffer(new SharedBuffer(acl, memory, "", true));
  acl.clear(memory, num_bytes);
  buffer->key_ = acl.export_key(memory, num_bytes);
  return buffer;
}

std::unique_ptr<SharedBuffer> SharedBuffer::open(const Acl& acl, const std::string& key) {
  return std::unique_ptr<SharedBuffer>(new SharedBuffer(acl, acl.open_key(key), key, false));
}

SharedBuffer::~SharedBuffer() {
  if (!key_.empty()) acl_.close_key(key_);
  if (is_own_) acl_.free(memory_);
}

void Kernels::launch(const std::string& name, int num_blocks, Stream stream,
                     std::initializer_list<Argument> arguments) {
  auto entry = functions_.find(name);
  if (entry == functions_.end()) {
    entry = functions_.emplace(name, acl_.function(binary_, name)).first;
  }
  std::vector<std::uint64_t> bits;
  for (const Argument& argument : arguments) bits.push_back(argument.bits);
  acl_.launch(entry->second, static_cast<std::uint32_t>(num_blocks), stream, bits.data(),
              bits.size());
}

}  // namespace asap::ascend
