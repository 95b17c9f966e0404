// Device memory that peers open by a key, which travels in a control message.
#pragma once

#include <memory>
#include <string>

#include "die.hpp"

namespace asap::ascend {

// Who may open a buffer: devices of this server, or of the whole supernode (A3).
enum class Reach { server, supernode };

class SharedBuffer {
 public:
  // Zeroed. Throws AclError.
  static std::shared_ptr<SharedBuffer> create(DiePtr die, std::int64_t num_bytes, Reach reach);
  // Throws AclError, also when the owner is gone.
  static std::shared_ptr<SharedBuffer> open(DiePtr die, const std::string& key,
                                            std::int64_t num_bytes);
  ~SharedBuffer();
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  std::byte* address() const { return address_; }
  std::int64_t num_bytes() const { return num_bytes_; }
  // Bytes; their length says how to open it.
  const std::string& key() const { return key_; }

 private:
  static std::shared_ptr<SharedBuffer> map_peer(DiePtr die, const std::string& key,
                                                std::int64_t num_bytes);
  SharedBuffer(DiePtr die, std::int64_t num_bytes) : die_(std::move(die)), num_bytes_(num_bytes) {}

  DiePtr die_;
  std::int64_t num_bytes_;
  std::byte* address_ = nullptr;
  Physical physical_ = nullptr;  // of memory with reach over servers
  std::string key_;
  bool is_own_ = false;
};

}  // namespace asap::ascend
