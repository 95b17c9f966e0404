#include "acl.hpp"

#include <dlfcn.h>

#include <array>

namespace asap::ascend {
namespace {

constexpr int kRepeatedInit = 100002;  // somebody, torch_npu perhaps, has done it already
constexpr int kHugePagesFirst = 0;
constexpr std::size_t kKeyBytes = 65;
constexpr std::uint64_t kAnyProcess = 1;  // no list of process ids for the key
constexpr std::uint64_t kEnablePeerAccess = 1;
constexpr int kCubeCores = 102, kVectorCores = 201;  // attributes of a device
constexpr int kFabric = 2;                           // a handle that other servers may open
constexpr std::size_t kHandleBytes = 128;

// aclrtPhysicalMemProp: huge pages of the device's own memory, pinned, shared by handle alone.
struct PhysicalProperties {
  int handle_type = 0;
  int allocation_type = 0;
  int attribute = 4;  // ACL_HBM_MEM_HUGE
  std::uint32_t device;
  int location_type = 1;  // a device
  std::uint64_t reserved = 0;
};

template <class Pointer>
void find(void* library, const char* name, Pointer& pointer) {
  pointer = reinterpret_cast<Pointer>(dlsym(library, name));
  if (pointer == nullptr) {
    throw AclError(std::string("libascendcl has no ") + name + "; CANN 8.3 or later is needed");
  }
}

}  // namespace

Acl::Acl(const char* path) : library_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) {
    throw AclError(std::string("no CANN runtime: ") + dlerror() +
                   "; source set_env.sh of the toolkit, then start again");
  }
#define ASAP_FIND(name, ...) find(library_, #name, functions_.name);
  ASAP_ACL_FUNCTIONS(ASAP_FIND)
#undef ASAP_FIND
}

Acl::~Acl() {
  if (library_ != nullptr) dlclose(library_);
}

void Acl::check(int code, const char* call) const {
  if (code == 0) return;
  const char* reason = functions_.aclGetRecentErrMsg();
  throw AclError(std::string(call) + " returned " + std::to_string(code) +
                 (reason == nullptr ? "" : std::string(": ") + reason));
}

void Acl::init() const {
  const int code = functions_.aclInit(nullptr);
  if (code != kRepeatedInit) check(code, "aclInit");
}

void Acl::set_device(int device) const {
  check(functions_.aclrtSetDevice(device), "aclrtSetDevice");
}

int Acl::num_devices() const {
  std::uint32_t count = 0;
  check(functions_.aclrtGetDeviceCount(&count), "aclrtGetDeviceCount");
  return static_cast<int>(count);
}

Cores Acl::cores(int device) const {
  const auto attribute = [&](int which) {
    std::int64_t value = 0;
    check(functions_.aclrtGetDeviceInfo(static_cast<std::uint32_t>(device), which, &value),
          "aclrtGetDeviceInfo");
    return static_cast<int>(value);
  };
  return {attribute(kVectorCores), attribute(kCubeCores)};
}

void* Acl::allocate(std::size_t num_bytes) const {
  void* memory = nullptr;
  check(functions_.aclrtMalloc(&memory, num_bytes, kHugePagesFirst), "aclrtMalloc");
  return memory;
}

void Acl::free(void* memory) const noexcept { functions_.aclrtFree(memory); }

void Acl::copy(void* to, const void* from, std::size_t num_bytes, Copy kind) const {
  check(functions_.aclrtMemcpy(to, num_bytes, from, num_bytes, static_cast<int>(kind)),
        "aclrtMemcpy");
}

void Acl::clear(void* memory, std::size_t num_bytes) const {
  check(functions_.aclrtMemset(memory, num_bytes, 0, num_bytes), "aclrtMemset");
}

std::string Acl::export_key(void* memory, std::size_t num_bytes) const {
  std::array<char, kKeyBytes> key{};
  check(functions_.aclrtIpcMemGetExportKey(memory, num_bytes, key.data(), key.size(), kAnyProcess),
        "aclrtIpcMemGetExportKey");
  return key.data();
}

void* Acl::open_key(const std::string& key) const {
  void* memory = nullptr;
  check(functions_.aclrtIpcMemImportByKey(&memory, key.c_str(), kEnablePeerAccess),
        "aclrtIpcMemImportByKey");
  return memory;
}

void Acl::close_key(const std::string& key) const noexcept {
  functions_.aclrtIpcMemClose(key.c_str());
}

const MappedMemory& Acl::mapped_memory() const {
  if (mapped_memory_.aclrtUnmapMem != nullptr) return mapped_memory_;
#define ASAP_FIND(name, ...) find(library_, #name, mapped_memory_.name);
  ASAP_ACL_MAPPED_MEMORY(ASAP_FIND)
#undef ASAP_FIND
  return mapped_memory_;
}

Physical Acl::allocate_physical(int device, std::size_t num_bytes) const {
  const PhysicalProperties properties{.device = static_cast<std::uint32_t>(device)};
  Physical physical = nullptr;
  check(mapped_memory().aclrtMallocPhysical(&physical, num_bytes, &properties, 0),
        "aclrtMallocPhysical");
  return physical;
}

std::string Acl::export_handle(Physical physical) const {
  std::string handle(kHandleBytes, '\0');
  check(mapped_memory().aclrtMemExportToShareableHandleV2(physical, kAnyProcess, kFabric,
                                                          handle.data()),
        "aclrtMemExportToShareableHandleV2");
  return handle;
}

Physical Acl::open_handle(const std::string& handle) const {
  std::string own = handle;  // the call takes it as writable
  Physical physical = nullptr;
  check(mapped_memory().aclrtMemImportFromShareableHandleV2(own.data(), kFabric, 0, &physical),
        "aclrtMemImportFromShareableHandleV2");
  return physical;
}

void* Acl::map(Physical physical, std::size_t num_bytes) const {
  void* memory = nullptr;
  check(mapped_memory().aclrtReserveMemAddress(&memory, num_bytes, 0, nullptr, 0),
        "aclrtReserveMemAddress");
  check(mapped_memory().aclrtMapMem(memory, num_bytes, 0, physical, 0), "aclrtMapMem");
  return memory;
}

void Acl::unmap(void* memory, Physical physical) const noexcept {
  mapped_memory_.aclrtUnmapMem(memory);
  mapped_memory_.aclrtReleaseMemAddress(memory);
  mapped_memory_.aclrtFreePhysical(physical);
}

Stream Acl::create_stream() const {
  Stream stream = nullptr;
  check(functions_.aclrtCreateStream(&stream), "aclrtCreateStream");
  return stream;
}

void Acl::destroy_stream(Stream stream) const noexcept { functions_.aclrtDestroyStream(stream); }

void Acl::synchronize(Stream stream) const {
  check(functions_.aclrtSynchronizeStream(stream), "aclrtSynchronizeStream");
}

Binary Acl::load(const std::string& file) const {
  Binary binary = nullptr;
  check(functions_.aclrtBinaryLoadFromFile(file.c_str(), nullptr, &binary),
        "aclrtBinaryLoadFromFile");
  return binary;
}

Function Acl::function(Binary binary, const std::string& name) const {
  Function function = nullptr;
  check(functions_.aclrtBinaryGetFunction(binary, name.c_str(), &function),
        "aclrtBinaryGetFunction");
  return function;
}

void Acl::launch(Function function, std::uint32_t num_blocks, Stream stream, std::uint64_t* args,
                 std::size_t num_args) const {
  check(functions_.aclrtLaunchKernelWithHostArgs(function, num_blocks, stream, nullptr, args,
                                                 num_args * sizeof(std::uint64_t), nullptr, 0),
        "aclrtLaunchKernelWithHostArgs");
}

}  // namespace asap::ascend
