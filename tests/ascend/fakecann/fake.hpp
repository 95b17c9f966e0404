// What the parts of the fake runtime share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace fake {

inline constexpr int kInvalidParameter = 107000;
inline constexpr int kNoContext = 107002;
inline constexpr int kOutOfMemory = 207001;

struct Mapped {
  std::size_t num_bytes;
  int file;  // -1 if it is not ours to close
};

inline std::mutex mutex;
inline std::map<void*, Mapped> mapped;  // device memory
inline thread_local std::string reason;
inline thread_local int device = -1;  // of this thread's context

// Says why a call failed, as aclGetRecentErrMsg will.
inline int refuse(int code, const std::string& why) {
  reason = why;
  return code;
}

// Those that ASCEND_RT_VISIBLE_DEVICES names, else all of the machine's.
std::int32_t num_visible_devices();

}  // namespace fake
