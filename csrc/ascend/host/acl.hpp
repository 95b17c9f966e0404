// What we call of the AscendCL runtime, found when first needed: no CANN to build or to import.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "acl_functions.hpp"
#include "partition.hpp"

namespace asap::ascend {

// CANN is missing, too old, or refused a call.
struct AclError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// As the runtime numbers them.
enum class Copy : int { host_to_device = 1, device_to_host = 2, on_device = 3 };

// Pointers to the runtime's functions. Each call throws AclError unless it returns 0.
class Acl {
 public:
  // Loads libascendcl, or the library at `path`. Throws AclError naming what is missing.
  explicit Acl(const char* path = "libascendcl.so");
  ~Acl();
  Acl(const Acl&) = delete;
  Acl& operator=(const Acl&) = delete;

  void init() const;
  int num_devices() const;
  void set_device(int device) const;
  Cores cores(int device) const;
  void* allocate(std::size_t num_bytes) const;
  void free(void* memory) const noexcept;
  void copy(void* to, const void* from, std::size_t num_bytes, Copy kind) const;
  void clear(void* memory, std::size_t num_bytes) const;

  // A key by which another process of this server opens the memory.
  std::string export_key(void* memory, std::size_t num_bytes) const;
  void* open_key(const std::string& key) const;
  void close_key(const std::string& key) const noexcept;

  // The same for memory that other servers of a supernode may open (A3): physical memory by a
  // handle of 128 bytes, mapped at an address of this process.
  Physical allocate_physical(int device, std::size_t num_bytes) const;
  std::string export_handle(Physical physical) const;
  Physical open_handle(const std::string& handle) const;
  void* map(Physical physical, std::size_t num_bytes) const;
  void unmap(void* memory, Physical physical) const noexcept;

  Stream create_stream() const;
  void destroy_stream(Stream stream) const noexcept;
  void synchronize(Stream stream) const;

  Binary load(const std::string& file) const;
  Function function(Binary binary, const std::string& name) const;
  // `args`: the kernel's parameters, 8 bytes each.
  void launch(Function function, std::uint32_t num_blocks, Stream stream, std::uint64_t* args,
              std::size_t num_args) const;

 private:
  void check(int code, const char* call) const;
  // Looked up when first needed: one server does without.
  const MappedMemory& mapped_memory() const;

  void* library_ = nullptr;
  Functions functions_{};
  mutable MappedMemory mapped_memory_{};
};

}  // namespace asap::ascend
