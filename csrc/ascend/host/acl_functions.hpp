// The functions of AscendCL that we call, with their types as we pass them: name, result,
// parameters. tests/ascend/test_headers.py holds them against the headers of the torch-npu wheel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace asap::ascend {

using Stream = void*;
using Binary = void*;
using Function = void*;
using Physical = void*;  // memory without an address

// clang-format off
#define ASAP_ACL_FUNCTIONS(USE)                                                                    \
  USE(aclInit, int, const char*)                                                                   \
  USE(aclrtGetDeviceCount, int, std::uint32_t*)                                                    \
  USE(aclrtSetDevice, int, std::int32_t)                                                           \
  USE(aclrtGetDeviceInfo, int, std::uint32_t, int, std::int64_t*)                                  \
  USE(aclrtMalloc, int, void**, std::size_t, int)                                                  \
  USE(aclrtFree, int, void*)                                                                       \
  USE(aclrtMemcpy, int, void*, std::size_t, const void*, std::size_t, int)                         \
  USE(aclrtMemset, int, void*, std::size_t, std::int32_t, std::size_t)                             \
  USE(aclrtIpcMemGetExportKey, int, void*, std::size_t, char*, std::size_t, std::uint64_t)         \
  USE(aclrtIpcMemImportByKey, int, void**, const char*, std::uint64_t)                             \
  USE(aclrtIpcMemClose, int, const char*)                                                          \
  USE(aclrtCreateStream, int, Stream*)                                                             \
  USE(aclrtDestroyStream, int, Stream)                                                             \
  USE(aclrtSynchronizeStream, int, Stream)                                                         \
  USE(aclrtBinaryLoadFromFile, int, const char*, void*, Binary*)                                   \
  USE(aclrtBinaryGetFunction, int, Binary, const char*, Function*)                                 \
  USE(aclrtLaunchKernelWithHostArgs, int, Function, std::uint32_t, Stream, void*, void*,           \
      std::size_t, void*, std::size_t)                                                             \
  USE(aclGetRecentErrMsg, const char*)

// Memory that other servers of a supernode may open; one server does without.
#define ASAP_ACL_MAPPED_MEMORY(USE)                                                                \
  USE(aclrtMallocPhysical, int, Physical*, std::size_t, const void*, std::uint64_t)                \
  USE(aclrtFreePhysical, int, Physical)                                                            \
  USE(aclrtMemExportToShareableHandleV2, int, Physical, std::uint64_t, int, void*)                 \
  USE(aclrtMemImportFromShareableHandleV2, int, void*, int, std::uint64_t, Physical*)              \
  USE(aclrtReserveMemAddress, int, void**, std::size_t, std::size_t, void*, std::uint64_t)         \
  USE(aclrtReleaseMemAddress, int, void*)                                                          \
  USE(aclrtMapMem, int, void*, std::size_t, std::size_t, Physical, std::uint64_t)                  \
  USE(aclrtUnmapMem, int, void*)
// clang-format on

#define ASAP_POINTER(name, result, ...) result (*name)(__VA_ARGS__);
struct Functions {
  ASAP_ACL_FUNCTIONS(ASAP_POINTER)
};
struct MappedMemory {
  ASAP_ACL_MAPPED_MEMORY(ASAP_POINTER)
};
#undef ASAP_POINTER

}  // namespace asap::ascend
