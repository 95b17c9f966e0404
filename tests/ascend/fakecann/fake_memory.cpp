// Device memory of the fake runtime: files without a name, which peers open through their owner's
// list of open files, by an IPC key in one server and by a fabric handle between servers.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "fake.hpp"

using namespace fake;

namespace {

constexpr std::size_t kKeyBytes = 65, kHandleBytes = 128;
constexpr std::size_t kPageBytes = 2 << 20;

// A piece of device memory: a file without a name, which peers open through its owner's list.
struct Physical {
  int file;
  std::size_t num_bytes;
};
std::map<std::string, void*> opened;  // by key

std::size_t whole_pages(std::size_t num_bytes) {
  return (num_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

int new_file(std::size_t num_bytes) {
  const int file = memfd_create("asap-fake", MFD_CLOEXEC);
  return file >= 0 && ftruncate(file, static_cast<off_t>(num_bytes)) == 0 ? file : -1;
}

std::string path_of(int file) {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
}

int map_file(void** memory, int file, std::size_t num_bytes, int own) {
  *memory = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (*memory == MAP_FAILED) return refuse(kOutOfMemory, "mmap failed");
  const std::lock_guard lock(mutex);
  mapped[*memory] = {num_bytes, own};
  return 0;
}

int open_file(const std::string& path, int& file, std::size_t& num_bytes) {
  file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status{};
  if (file < 0 || fstat(file, &status) != 0) {
    return refuse(kInvalidParameter, path + ": its owner is gone");
  }
  num_bytes = static_cast<std::size_t>(status.st_size);
  return 0;
}

// Whether one allocation holds all of it.
bool is_device_memory(const void* begin, std::size_t num_bytes) {
  const std::lock_guard lock(mutex);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  for (const auto& [first, entry] : mapped) {
    const auto base = reinterpret_cast<std::uintptr_t>(first);
    if (address >= base && address + num_bytes <= base + entry.num_bytes) return true;
  }
  return false;
}

}  // namespace

extern "C" {

int aclrtMalloc(void** memory, std::size_t num_bytes, int) {
  if (device < 0) return refuse(kNoContext, "this thread has set no device");
  const std::size_t size = whole_pages(num_bytes);
  const int file = new_file(size);
  return file < 0 ? refuse(kOutOfMemory, "no memory") : map_file(memory, file, size, file);
}

int aclrtFree(void* memory) {
  const std::lock_guard lock(mutex);
  const auto entry = mapped.find(memory);
  if (entry == mapped.end()) return refuse(kInvalidParameter, "not allocated");
  munmap(memory, entry->second.num_bytes);
  close(entry->second.file);
  mapped.erase(entry);
  return 0;
}

int aclrtMemcpy(void* to, std::size_t room, const void* from, std::size_t num_bytes, int kind) {
  if (device < 0) return refuse(kNoContext, "this thread has set no device");
  if (num_bytes > room || kind < 1 || kind > 3) return refuse(kInvalidParameter, "bad copy");
  if (!is_device_memory(kind == 1 ? to : from, num_bytes)) {
    return refuse(kInvalidParameter, "the device's side of the copy is not device memory");
  }
  if (kind == 3 && !is_device_memory(to, num_bytes)) {
    return refuse(kInvalidParameter, "not device memory");
  }
  std::memcpy(to, from, num_bytes);
  return 0;
}

int aclrtMemset(void* memory, std::size_t room, std::int32_t value, std::size_t num_bytes) {
  if (num_bytes > room || !is_device_memory(memory, num_bytes)) {
    return refuse(kInvalidParameter, "not device memory");
  }
  std::memset(memory, value, num_bytes);
  return 0;
}

int aclrtIpcMemGetExportKey(void* memory, std::size_t num_bytes, char* key, std::size_t room,
                            std::uint64_t) {
  const std::lock_guard lock(mutex);
  const auto entry = mapped.find(memory);
  if (room != kKeyBytes || entry == mapped.end() || entry->second.file < 0 ||
      num_bytes % kPageBytes != 0 || num_bytes > entry->second.num_bytes) {
    return refuse(kInvalidParameter, "a key is for whole pages of one allocation, in 65 bytes");
  }
  std::strncpy(key, path_of(entry->second.file).c_str(), kKeyBytes - 1);
  return 0;
}

int aclrtIpcMemImportByKey(void** memory, const char* key, std::uint64_t) {
  int file = -1;
  std::size_t num_bytes = 0;
  {
    const std::lock_guard lock(mutex);
    if (opened.contains(key)) return refuse(kInvalidParameter, "this process has opened the key");
  }
  if (const int code = open_file(key, file, num_bytes)) return code;
  const int code = map_file(memory, file, num_bytes, -1);
  close(file);
  if (code != 0) return code;
  const std::lock_guard lock(mutex);
  opened[key] = *memory;
  return 0;
}

int aclrtIpcMemClose(const char* key) {
  const std::lock_guard lock(mutex);
  const auto entry = opened.find(key);
  if (entry == opened.end()) return 0;  // by its owner
  munmap(entry->second, mapped[entry->second].num_bytes);
  mapped.erase(entry->second);
  opened.erase(entry);
  return 0;
}

int aclrtMallocPhysical(void** physical, std::size_t num_bytes, const void*, std::uint64_t flags) {
  if (num_bytes % kPageBytes != 0 || flags != 0) {
    return refuse(kInvalidParameter, "physical memory comes in whole pages");
  }
  const int file = new_file(num_bytes);
  if (file < 0) return refuse(kOutOfMemory, "no memory");
  *physical = new Physical{file, num_bytes};
  return 0;
}

int aclrtFreePhysical(void* physical) {
  const auto* memory = static_cast<Physical*>(physical);
  close(memory->file);
  delete memory;
  return 0;
}

int aclrtMemExportToShareableHandleV2(void* physical, std::uint64_t, int type, void* handle) {
  if (type != 2) return refuse(kInvalidParameter, "only fabric handles");
  std::array<char, kHandleBytes> bytes{};
  const std::string path = path_of(static_cast<Physical*>(physical)->file);
  path.copy(bytes.data(), bytes.size() - 1);
  std::memcpy(handle, bytes.data(), bytes.size());
  return 0;
}

int aclrtMemImportFromShareableHandleV2(void* handle, int type, std::uint64_t, void** physical) {
  if (type != 2) return refuse(kInvalidParameter, "only fabric handles");
  Physical opened_memory{};
  const std::string path(static_cast<const char*>(handle));
  if (const int code = open_file(path, opened_memory.file, opened_memory.num_bytes)) return code;
  *physical = new Physical(opened_memory);
  return 0;
}

int aclrtReserveMemAddress(void** memory, std::size_t num_bytes, std::size_t alignment, void*,
                           std::uint64_t) {
  if (alignment != 0 || num_bytes % kPageBytes != 0) {
    return refuse(kInvalidParameter, "addresses are reserved in whole pages");
  }
  *memory = mmap(nullptr, num_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return *memory == MAP_FAILED ? refuse(kOutOfMemory, "no addresses") : 0;
}

int aclrtMapMem(void* memory, std::size_t num_bytes, std::size_t offset, void* physical,
                std::uint64_t) {
  const auto* from = static_cast<Physical*>(physical);
  if (offset != 0 || num_bytes > from->num_bytes) return refuse(kInvalidParameter, "too long");
  if (mmap(memory, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, from->file, 0) ==
      MAP_FAILED) {
    return refuse(kOutOfMemory, "mmap failed");
  }
  const std::lock_guard lock(mutex);
  mapped[memory] = {num_bytes, -1};
  return 0;
}

int aclrtUnmapMem(void*) { return 0; }

int aclrtReleaseMemAddress(void* memory) {
  const std::lock_guard lock(mutex);
  const auto entry = mapped.find(memory);
  if (entry == mapped.end()) return refuse(kInvalidParameter, "not mapped");
  munmap(memory, entry->second.num_bytes);
  mapped.erase(entry);
  return 0;
}
}
