// What torch_npu calls of the runtime beside our host code. Streams and events are numbers: all
// work has ended when its call returns.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "fake.hpp"

using namespace fake;

extern "C" {

int aclrtMemcpy(void*, std::size_t, const void*, std::size_t, int);
int aclrtMemset(void*, std::size_t, std::int32_t, std::size_t);
int aclrtMalloc(void**, std::size_t, int);
int aclrtSetDevice(std::int32_t);
int aclrtCreateStream(void**);

int aclFinalize() { return 0; }
const char* aclrtGetSocName() { return "Ascend910_9391"; }
// Of any package of the toolkit; the wheel calls newer operators from 8.1 on.
int aclsysGetCANNVersion(int, char* version) {
  std::strcpy(version, "8.3.RC1");
  return 0;
}

int aclrtGetDevice(std::int32_t* number) {
  if (device < 0) return refuse(kNoContext, "this thread has set no device");
  *number = device;
  return 0;
}
int aclrtResetDevice(std::int32_t) { return 0; }
int aclrtSetDeviceSatMode(int) { return 0; }
int aclrtSynchronizeDevice() { return 0; }
int aclrtSynchronizeDeviceWithTimeout(std::int32_t) { return 0; }
int aclrtDeviceCanAccessPeer(std::int32_t* can, std::int32_t, std::int32_t) {
  *can = 1;
  return 0;
}

// A context is the number of its device, plus one.
int aclrtGetCurrentContext(void** context) {
  if (device < 0) return refuse(kNoContext, "this thread has set no device");
  *context = reinterpret_cast<void*>(static_cast<std::intptr_t>(device) + 1);
  return 0;
}
int aclrtSetCurrentContext(void* context) {
  return aclrtSetDevice(static_cast<std::int32_t>(reinterpret_cast<std::intptr_t>(context)) - 1);
}

int aclrtMallocAlign32(void** memory, std::size_t num_bytes, int policy) {
  return aclrtMalloc(memory, num_bytes, policy);
}
int aclrtMallocHost(void** memory, std::size_t num_bytes) {
  *memory = std::aligned_alloc(64, (num_bytes + 63) / 64 * 64);
  return *memory == nullptr ? refuse(kOutOfMemory, "no host memory") : 0;
}
int aclrtFreeHost(void* memory) {
  std::free(memory);
  return 0;
}
// A die of 8 GiB; what this process has mapped is taken.
int aclrtGetMemInfo(int, std::size_t* free, std::size_t* total) {
  const std::lock_guard lock(mutex);
  *free = *total = std::size_t{8} << 30;
  for (const auto& [memory, each] : mapped) *free -= each.num_bytes;
  return 0;
}
int aclrtMemsetAsync(void* memory, std::size_t room, std::int32_t value, std::size_t num_bytes,
                     void*) {
  return aclrtMemset(memory, room, value, num_bytes);
}
int aclrtMemcpyAsync(void* to, std::size_t room, const void* from, std::size_t num_bytes, int kind,
                     void*) {
  return aclrtMemcpy(to, room, from, num_bytes, kind);
}

int aclrtCreateStreamWithConfig(void** stream, std::uint32_t, std::uint32_t) {
  return aclrtCreateStream(stream);
}
int aclrtSynchronizeStreamWithTimeout(void*, std::int32_t) { return 0; }
int aclrtStreamQuery(void*, int* status) {
  *status = 0;  // complete
  return 0;
}
int aclrtStreamGetId(void* stream, std::int32_t* number) {
  *number = static_cast<std::int32_t>(reinterpret_cast<std::intptr_t>(stream));
  return 0;
}
int aclrtSetStreamFailureMode(void*, std::uint64_t) { return 0; }
int aclrtSetOpWaitTimeout(std::uint32_t) { return 0; }
int aclrtSetOpExecuteTimeOut(std::uint32_t) { return 0; }
int aclrtStreamWaitEvent(void*, void*) { return 0; }
int aclrtCreateEventExWithFlag(void** event, std::uint32_t) { return aclrtCreateStream(event); }
int aclrtCreateEventWithFlag(void** event, std::uint32_t) { return aclrtCreateStream(event); }
int aclrtDestroyEvent(void*) { return 0; }
int aclrtRecordEvent(void*, void*) { return 0; }
int aclrtResetEvent(void*, void*) { return 0; }
int aclrtSynchronizeEvent(void*) { return 0; }
int aclrtQueryEventStatus(void*, int* status) {
  *status = 1;  // recorded
  return 0;
}

// How operators would be compiled; none is.
std::size_t aclGetCompileoptSize(int) { return 64; }
int aclGetCompileopt(int, char* value, std::size_t room) {
  std::memset(value, 0, room);
  return 0;
}
int aclSetCompileopt(int, const char*) { return 0; }
int aclrtGetSysParamOpt(int, std::int64_t* value) {
  *value = 0;
  return 0;
}
int aclrtSetSysParamOpt(int, std::int64_t) { return 0; }
int aclrtCtxSetSysParamOpt(int, std::int64_t) { return 0; }
}
