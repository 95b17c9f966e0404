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
#define ASAP_FIND(name) find(library_, #name, functions_.name)
  ASAP_FIND(aclInit);
  ASAP_FIND(aclrtSetDevice);
  ASAP_FIND(aclrtMalloc);
  ASAP_FIND(aclrtFree);
  ASAP_FIND(aclrtMemcpy);
  ASAP_FIND(aclrtMemset);
  ASAP_FIND(aclrtIpcMemGetExportKey);
  ASAP_FIND(aclrtIpcMemImportByKey);
  ASAP_FIND(aclrtIpcMemClose);
  ASAP_FIND(aclrtCreateStream);
  ASAP_FIND(aclrtDestroyStream);
  ASAP_FIND(aclrtSynchronizeStream);
  ASAP_FIND(aclrtBinaryLoadFromFile);
  ASAP_FIND(aclrtBinaryGetFunction);
  ASAP_FIND(aclrtLaunchKernelWithHostArgs);
  ASAP_FIND(aclGetRecentErrMsg);
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
