// A libascendcl for tests: device memory is shared host memory (fake_memory.cpp), a kernel runs on
// the twin before its launch returns. What is not here does not exist, so that nothing passes on a
// stub.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "fake.hpp"

using namespace fake;

namespace {

constexpr int kKernelFailed = 507015;
constexpr std::int32_t kDevices = 4;
constexpr std::int64_t kVectorCores = 4, kCubeCores = 2;  // small: every core is a fiber
constexpr std::uint64_t kMaxSteps = 100'000'000;

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

}  // namespace

std::int32_t fake::num_visible_devices() {
  const char* visible = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
  if (visible == nullptr) return kDevices;
  const std::string list(visible);
  return list.empty() ? 0 : static_cast<std::int32_t>(std::ranges::count(list, ',') + 1);
}

extern "C" {

int aclInit(const char*) { return 0; }

int aclrtGetDeviceCount(std::uint32_t* count) {
  *count = static_cast<std::uint32_t>(num_visible_devices());
  return 0;
}

int aclrtSetDevice(std::int32_t number) {
  if (number < 0 || number >= num_visible_devices())
    return refuse(kInvalidParameter, "no such device");
  device = number;
  return 0;
}

int aclrtGetDeviceInfo(std::uint32_t, int attribute, std::int64_t* value) {
  if (attribute != 102 && attribute != 201) return refuse(kInvalidParameter, "unknown attribute");
  *value = attribute == 102 ? kCubeCores : kVectorCores;
  return 0;
}

int aclrtCreateStream(void** stream) {
  static std::intptr_t count = 0;
  if (device < 0) return refuse(kNoContext, "this thread has set no device");
  const std::lock_guard lock(mutex);
  *stream = reinterpret_cast<void*>(++count);
  return 0;
}

int aclrtDestroyStream(void*) { return 0; }
int aclrtSynchronizeStream(void*) { return 0; }

int aclrtBinaryLoadFromFile(const char* file, void*, void** binary) {
  *binary = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  return *binary == nullptr ? refuse(kInvalidParameter, dlerror()) : 0;
}

int aclrtBinaryGetFunction(void* binary, const char* name, void** function) {
  if (dlsym(binary, name) == nullptr) {
    return refuse(kInvalidParameter, std::string("no kernel ") + name);
  }
  *function = new Kernel{binary, name};
  return 0;
}

int aclrtLaunchKernelWithHostArgs(void* function, std::uint32_t num_blocks, void*, void*,
                                  void* args, std::size_t num_bytes, void*, std::size_t) {
  static thread_local std::uint64_t seed = 0;
  const Kernel& kernel = *static_cast<Kernel*>(function);
  const auto run = reinterpret_cast<Run>(dlsym(kernel.library, "asap_twin_run"));
  std::vector<Memory> memory;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [begin, entry] : mapped) memory.push_back({begin, entry.num_bytes});
  }
  std::vector<void*> pointers;
  for (std::size_t n = 0; n < num_bytes / 8; ++n) {
    pointers.push_back(static_cast<std::uint64_t*>(args) + n);
  }
  const Launch launch{kernel.name.c_str(), device, 0, -1, static_cast<std::int32_t>(num_blocks),
                      pointers.data()};
  reason =
      run(&launch, 1, memory.data(), static_cast<std::int32_t>(memory.size()), ++seed, kMaxSteps);
  return reason.empty() ? 0 : kKernelFailed;
}

const char* aclGetRecentErrMsg() { return reason.empty() ? nullptr : reason.c_str(); }
}
