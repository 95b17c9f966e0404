#include "asap/shared_buffer.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "asap/errors.hpp"

namespace asap {
namespace {

constexpr std::int64_t kPageBytes = 4096;

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// Closes unless released.
class Fd {
 public:
  Fd(int fd, const std::string& what) : fd_(fd) {
    if (fd < 0) fail(what);
  }
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;

  int get() const noexcept { return fd_; }
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Writes nothing new: a peer may already be using the page.
void touch_pages(std::byte* bytes, std::int64_t num_bytes) {
  for (std::int64_t offset = 0; offset < num_bytes; offset += kPageBytes) {
    auto& byte = reinterpret_cast<std::uint8_t&>(bytes[offset]);
    std::atomic_ref(byte).fetch_or(0, std::memory_order_relaxed);
  }
}

// A sealed memfd of this size.
Fd memory_of(const std::string& name, std::int64_t num_bytes) {
  ASAP_CHECK(num_bytes > 0, "buffer ", name, ": num_bytes=", num_bytes, " must be positive");
  const std::string full_name = "asap-" + name;
  Fd fd(memfd_create(full_name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING),
        "cannot create buffer " + full_name);
  if (fchmod(fd.get(), 0600) != 0) fail("cannot protect buffer " + full_name);
  if (ftruncate(fd.get(), num_bytes) != 0) {
    fail(text("cannot give buffer ", full_name, " ", num_bytes, " bytes"));
  }
  // A peer that shrank it would kill every other with SIGBUS.
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    fail("cannot seal buffer " + full_name);
  }
  return fd;
}

std::string link_target(const std::string& path) {
  char target[256];
  const ssize_t length = readlink(path.c_str(), target, sizeof target);
  if (length < 0) fail("cannot read " + path);
  return std::string(target, static_cast<std::size_t>(length));
}

}  // namespace

Mapping::Mapping(int fd, std::int64_t num_bytes) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* address =
      mmap(nullptr, static_cast<std::size_t>(num_bytes), PROT_READ | PROT_WRITE, flags, fd, 0);
  if (address == MAP_FAILED) fail(text("cannot map ", num_bytes, " bytes"));
  bytes_ = static_cast<std::byte*>(address);
  num_bytes_ = num_bytes;
}

Mapping Mapping::present(int fd, std::int64_t num_bytes) {
  Mapping mapping(fd, num_bytes);
  // Best effort: without huge pages everything works, more slowly.
  madvise(mapping.bytes_, static_cast<std::size_t>(num_bytes), MADV_HUGEPAGE);
  touch_pages(mapping.bytes_, num_bytes);
  return mapping;
}

Mapping::~Mapping() {
  if (bytes_ != nullptr) munmap(bytes_, static_cast<std::size_t>(num_bytes_));
}

Mapping::Mapping(Mapping&& other) noexcept
    : bytes_(std::exchange(other.bytes_, nullptr)),
      num_bytes_(std::exchange(other.num_bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

std::shared_ptr<SharedBuffer> SharedBuffer::create(const std::string& name,
                                                   std::int64_t num_bytes) {
  Fd fd = memory_of(name, num_bytes);
  std::shared_ptr<SharedBuffer> buffer(
      new SharedBuffer(fd.get(), Mapping::shared(fd.get(), num_bytes)));
  fd.release();
  return buffer;
}

std::shared_ptr<SharedBuffer> SharedBuffer::create_sparse(const std::string& name,
                                                          std::int64_t num_bytes) {
  Fd fd = memory_of(name, num_bytes);
  std::shared_ptr<SharedBuffer> buffer(
      new SharedBuffer(fd.get(), Mapping::sparse(fd.get(), num_bytes)));
  fd.release();
  return buffer;
}

std::shared_ptr<SharedBuffer> SharedBuffer::open(pid_t pid, int fd, std::int64_t num_bytes) {
  const std::string path = text("/proc/", pid, "/fd/", fd);
  Fd opened(::open(path.c_str(), O_RDWR | O_CLOEXEC),
            text("cannot open ", path, ", buffer of process ", pid));
  const std::string target = link_target(text("/proc/self/fd/", opened.get()));
  ASAP_CHECK(target.starts_with("/memfd:asap-"), path, " is ", target, ", not an asap buffer");
  struct stat status;
  if (fstat(opened.get(), &status) != 0) fail("cannot stat " + path);
  ASAP_CHECK(status.st_size == num_bytes, path, " has ", status.st_size, " bytes, expected ",
             num_bytes, "; do both sides have the same configuration?");
  std::shared_ptr<SharedBuffer> buffer(
      new SharedBuffer(opened.get(), Mapping::shared(opened.get(), num_bytes)));
  opened.release();
  return buffer;
}

SharedBuffer::SharedBuffer(int fd, Mapping mapping)
    : pid_(getpid()), fd_(fd), mapping_(std::move(mapping)) {}

SharedBuffer::~SharedBuffer() { close(fd_); }

}  // namespace asap
