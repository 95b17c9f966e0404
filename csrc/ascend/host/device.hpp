// One die: memory, and kernels by name.
#pragma once

#include <concepts>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>

#include "acl.hpp"

namespace asap::ascend {

// Device memory, of this process or opened from a peer by its key.
class SharedBuffer {
 public:
  // Zeroed. Throws AclError.
  static std::unique_ptr<SharedBuffer> create(const Acl& acl, std::size_t num_bytes);
  static std::unique_ptr<SharedBuffer> open(const Acl& acl, const std::string& key);
  ~SharedBuffer();
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  void* memory() const { return memory_; }
  // What a peer opens; it travels in a control message.
  const std::string& key() const { return key_; }

 private:
  SharedBuffer(const Acl& acl, void* memory, std::string key, bool is_own)
      : acl_(acl), memory_(memory), key_(std::move(key)), is_own_(is_own) {}

  const Acl& acl_;
  void* memory_;
  std::string key_;
  bool is_own_;
};

// A kernel's parameter: every one has 8 bytes.
struct Argument {
  Argument(const void* memory) : bits(reinterpret_cast<std::uint64_t>(memory)) {}
  Argument(std::integral auto value)
      : bits(static_cast<std::uint64_t>(static_cast<std::int64_t>(value))) {}
  std::uint64_t bits;
};

// The kernels of one binary. A function is looked up once.
class Kernels {
 public:
  // Throws AclError.
  Kernels(const Acl& acl, const std::string& file) : acl_(acl), binary_(acl.load(file)) {}

  // Returns when the launch is queued.
  void launch(const std::string& name, int num_blocks, Stream stream,
              std::initializer_list<Argument> arguments);

 private:
  const Acl& acl_;
  Binary binary_;
  std::map<std::string, Function> functions_;
};

}  // namespace asap::ascend
