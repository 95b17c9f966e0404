// A libascendcl for tests: device memory is shared host memory, a kernel runs on the twin before
// its launch returns. What is not here does not exist, so that nothing passes on a stub.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr int kInvalidParameter = 107000;
constexpr int kOutOfMemory = 207001;
constexpr int kKernelFailed = 507015;
constexpr std::size_t kKeyBytes = 65;
constexpr std::size_t kPageBytes = 2 << 20;

struct Launch {
  const char* kernel;
  std::int32_t device, stream, after, num_blocks;
  void* const* args;
};
struct Memory {
  const void* begin;
  std::uint64_t num_bytes;
};
using Run = const char* (*)(const Launch*, std::int32_t, const Memory*, std::int32_t, std::uint64_t,
                            std::uint64_t);
struct Kernel {
  void* library;
  std::string name;
};

std::map<void*, std::pair<std::string, std::size_t>> mapped;  // name and size, by address
std::map<std::string, void*> opened;
std::vector<Kernel*> kernels;
std::string reason;
int device = -1;

void* map_shared(const std::string& name, std::size_t num_bytes, int flags) {
  const int file = shm_open(name.c_str(), flags, 0600);
  if (file < 0) return nullptr;
  struct stat status{};
  if ((flags & O_CREAT) != 0 && ftruncate(file, static_cast<off_t>(num_bytes)) != 0) return nullptr;
  fstat(file, &status);
  const auto size = static_cast<std::size_t>(status.st_size);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return nullptr;
  mapped[memory] = {name, size};
  return memory;
}

}  // namespace

extern "C" {

int aclInit(const char*) { return 0; }

int aclrtSetDevice(std::int32_t number) {
  device = number;
  return 0;
}

int aclrtMalloc(void** memory, std::size_t num_bytes, int) {
  static int count = 0;
  const std::string name = "/asap-fake-" + std::to_string(getpid()) + "-" + std::to_string(count++);
  const std::size_t size = (num_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  *memory = device < 0 ? nullptr : map_shared(name, size, O_CREAT | O_EXCL | O_RDWR);
  return *memory == nullptr ? kOutOfMemory : 0;
}

int aclrtFree(void* memory) {
  const auto entry = mapped.find(memory);
  if (entry == mapped.end()) return kInvalidParameter;
  shm_unlink(entry->second.first.c_str());
  munmap(memory, entry->second.second);
  mapped.erase(entry);
  return 0;
}

int aclrtMemcpy(void* to, std::size_t room, const void* from, std::size_t num_bytes, int kind) {
  if (num_bytes > room || kind < 1 || kind > 2) return kInvalidParameter;
  std::memcpy(to, from, num_bytes);
  return 0;
}

int aclrtMemset(void* memory, std::size_t room, std::int32_t value, std::size_t num_bytes) {
  if (num_bytes > room) return kInvalidParameter;
  std::memset(memory, value, num_bytes);
  return 0;
}

int aclrtIpcMemGetExportKey(void* memory, std::size_t num_bytes, char* key, std::size_t room,
                            std::uint64_t) {
  const auto entry = mapped.find(memory);
  if (room != kKeyBytes || entry == mapped.end() || num_bytes > entry->second.second) {
    return kInvalidParameter;
  }
  std::strncpy(key, entry->second.first.c_str(), kKeyBytes - 1);
  return 0;
}

int aclrtIpcMemImportByKey(void** memory, const char* key, std::uint64_t) {
  *memory = map_shared(key, 0, O_RDWR);
  if (*memory == nullptr) return kInvalidParameter;
  opened[key] = *memory;
  return 0;
}

int aclrtIpcMemClose(const char* key) {
  const auto entry = opened.find(key);
  if (entry == opened.end()) return 0;  // by its owner
  munmap(entry->second, mapped[entry->second].second);
  mapped.erase(entry->second);
  opened.erase(entry);
  return 0;
}

int aclrtCreateStream(void** stream) {
  static std::intptr_t count = 0;
  *stream = reinterpret_cast<void*>(++count);
  return 0;
}

int aclrtDestroyStream(void*) { return 0; }
int aclrtSynchronizeStream(void*) { return 0; }

int aclrtBinaryLoadFromFile(const char* file, void*, void** binary) {
  *binary = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (*binary == nullptr) reason = dlerror();
  return *binary == nullptr ? kInvalidParameter : 0;
}

int aclrtBinaryGetFunction(void* binary, const char* name, void** function) {
  if (dlsym(binary, name) == nullptr) {
    reason = std::string("no kernel ") + name;
    return kInvalidParameter;
  }
  kernels.push_back(new Kernel{binary, name});
  *function = kernels.back();
  return 0;
}

int aclrtLaunchKernelWithHostArgs(void* function, std::uint32_t num_blocks, void*, void*,
                                  void* args, std::size_t num_bytes, void*, std::size_t) {
  const Kernel& kernel = *static_cast<Kernel*>(function);
  const auto run = reinterpret_cast<Run>(dlsym(kernel.library, "asap_twin_run"));
  std::vector<Memory> memory;
  for (const auto& [begin, entry] : mapped) memory.push_back({begin, entry.second});
  std::vector<void*> pointers;
  for (std::size_t n = 0; n < num_bytes / 8; ++n) {
    pointers.push_back(static_cast<std::uint64_t*>(args) + n);
  }
  const Launch launch{kernel.name.c_str(), device, 0, -1, static_cast<std::int32_t>(num_blocks),
                      pointers.data()};
  reason = run(&launch, 1, memory.data(), static_cast<std::int32_t>(memory.size()), 1, 100'000'000);
  return reason.empty() ? 0 : kKernelFailed;
}

const char* aclGetRecentErrMsg() { return reason.empty() ? nullptr : reason.c_str(); }
}
