// Registered memory: allocated once at start, opened by peers, never moved (3.2).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace asap {

// Owns one mapping. Its pages are present from the start, in huge pages where the kernel has them,
// or come when they are written.
class Mapping {
 public:
  static Mapping anonymous(std::int64_t num_bytes) { return present(-1, num_bytes); }
  static Mapping shared(int fd, std::int64_t num_bytes) { return present(fd, num_bytes); }
  static Mapping sparse(int fd, std::int64_t num_bytes) { return Mapping(fd, num_bytes); }

  Mapping() = default;
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  std::byte* bytes() const noexcept { return bytes_; }
  std::int64_t num_bytes() const noexcept { return num_bytes_; }

 private:
  static Mapping present(int fd, std::int64_t num_bytes);
  Mapping(int fd, std::int64_t num_bytes);

  std::byte* bytes_ = nullptr;
  std::int64_t num_bytes_ = 0;
};

// A memfd: it has no name in any file system, so it is gone with its last process, however that
// ends. The owner only may open it (mode 0600), and its size is sealed.
class SharedBuffer {
 public:
  // `name` shows up in /proc/PID/maps as memfd:asap-NAME. Throws std::system_error.
  static std::shared_ptr<SharedBuffer> create(const std::string& name, std::int64_t num_bytes);

  // The same for memory of which little will be written: pages come with the first write.
  static std::shared_ptr<SharedBuffer> create_sparse(const std::string& name,
                                                     std::int64_t num_bytes);

  // Open a peer's buffer through /proc/PID/fd/FD. Throws std::system_error when the peer is gone,
  // std::invalid_argument when what is there is no buffer of ours of this size.
  static std::shared_ptr<SharedBuffer> open(pid_t pid, int fd, std::int64_t num_bytes);

  ~SharedBuffer();
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  pid_t pid() const noexcept { return pid_; }  // of this process: where others may open it
  int fd() const noexcept { return fd_; }
  std::byte* bytes() const noexcept { return mapping_.bytes(); }
  std::int64_t num_bytes() const noexcept { return mapping_.num_bytes(); }

 private:
  SharedBuffer(int fd, Mapping mapping);

  pid_t pid_;
  int fd_;
  Mapping mapping_;
};

}  // namespace asap
