// The part of AscendC that csrc/ascend/kernels uses, run on the twin of core.hpp and machine.hpp.
// Written from the documented behaviour of the interface (docs/ascend.md); test only.
#pragma once

#include "elements.hpp"
#include "machine.hpp"

#define __global__
#define __aicore__
#define __gm__
#define __ubuf__
#define __mix__(cube, vector)
#define __vector__
#define GM_ADDR std::uint8_t*

enum event_t { EVENT_ID0, EVENT_ID1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5 };

namespace AscendC {

namespace twin = asap::twin;

constexpr int event_of(pipe_t from, pipe_t to) { return from << 4 | to; }

enum class TPosition : std::uint8_t { GM, VECIN, VECOUT, VECCALC };

// Only what the hardware has.
enum class HardEvent : int {
  MTE2_S = event_of(PIPE_MTE2, PIPE_S),
  MTE3_S = event_of(PIPE_MTE3, PIPE_S),
  V_S = event_of(PIPE_V, PIPE_S),
  S_MTE2 = event_of(PIPE_S, PIPE_MTE2),
  S_MTE3 = event_of(PIPE_S, PIPE_MTE3),
  S_V = event_of(PIPE_S, PIPE_V),
  MTE2_MTE3 = event_of(PIPE_MTE2, PIPE_MTE3),
  MTE3_MTE2 = event_of(PIPE_MTE3, PIPE_MTE2),
  MTE2_V = event_of(PIPE_MTE2, PIPE_V),
  V_MTE2 = event_of(PIPE_V, PIPE_MTE2),
  V_MTE3 = event_of(PIPE_V, PIPE_MTE3),
  MTE3_V = event_of(PIPE_MTE3, PIPE_V),
};

enum class CacheLine : std::uint64_t { SINGLE_CACHE_LINE, ENTIRE_DATA_CACHE };
enum class DcciDst : std::uint64_t { CACHELINE_ALL, CACHELINE_UB, CACHELINE_OUT };
enum class MemDsbT { ALL, DDR, UB, SEQ };
enum class RoundMode { CAST_NONE, CAST_RINT };

// Lengths and strides of global memory in bytes, strides of the unified buffer in 32 B blocks.
struct DataCopyExtParams {
  std::uint16_t blockCount = 1;
  std::uint32_t blockLen = 0, srcStride = 0, dstStride = 0, rsv = 0;
};

template <class T>
struct DataCopyPadExtParams {
  bool isPad = false;
  std::uint8_t leftPadding = 0, rightPadding = 0;
  T paddingValue{};
};

inline std::int64_t GetBlockIdx() { return twin::this_core().place.block; }
inline std::int64_t GetBlockNum() { return twin::this_core().place.num_blocks; }

inline std::int64_t GetSystemCycle() {
  twin::this_core().look();
  return static_cast<std::int64_t>(twin::this_core().now_);
}

template <class T>
class GlobalTensor {
 public:
  void SetGlobalBuffer(T* begin, std::uint64_t = 0) { begin_ = begin; }
  const T* GetPhyAddr() const { return begin_; }
  T* address() const { return begin_; }
  GlobalTensor operator[](std::uint64_t offset) const {
    GlobalTensor tensor;
    tensor.begin_ = begin_ + offset;
    return tensor;
  }
  T GetValue(std::uint64_t offset) const {
    T value;
    twin::this_core().tick();
    twin::this_core().cache.read(begin_ + offset, &value, sizeof(T));
    return value;
  }
  void SetValue(std::uint64_t offset, T value) const {
    twin::this_core().tick();
    twin::this_core().cache.write(begin_ + offset, &value, sizeof(T));
  }

 private:
  T* begin_ = nullptr;
};

template <class T>
class LocalTensor {
 public:
  LocalTensor() = default;
  LocalTensor(std::uint32_t begin, std::uint32_t num_bytes)
      : begin_(begin), num_bytes_(num_bytes) {}

  LocalTensor operator[](std::uint32_t offset) const {
    const auto skip = static_cast<std::uint32_t>(offset * sizeof(T));
    return {begin_ + skip, num_bytes_ - skip};
  }
  T GetValue(std::uint32_t offset) const {
    twin::this_core().scalar_touch(touch(offset, 1, false));
    require_set(offset, 1);
    T value;
    std::memcpy(&value, data() + offset, sizeof(T));
    return value;
  }
  void SetValue(std::uint32_t offset, T value) const {
    twin::this_core().scalar_touch(touch(offset, 1, true));
    std::memcpy(data() + offset, &value, sizeof(T));
    mark_set(offset, 1);
  }

  // For the twin: elements offset .. offset + count - 1 of it.
  twin::Touch touch(std::uint32_t offset, std::uint64_t count, bool writes) const {
    const std::uint64_t first = begin_ + offset * sizeof(T), end = first + count * sizeof(T);
    if (end > begin_ + num_bytes_) throw twin::Fault("unified buffer: access behind the end");
    return {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end), writes};
  }
  T* data() const { return reinterpret_cast<T*>(twin::this_core().unified.data() + begin_); }
  std::uint32_t begin() const { return begin_; }
  std::uint32_t num_bytes() const { return num_bytes_; }
  void require_set(std::uint32_t offset, std::uint32_t count) const {
    const auto first = twin::this_core().is_set.begin() + begin_ + offset * sizeof(T);
    for (std::size_t n = 0; n < count * sizeof(T); ++n) {
      if (!first[static_cast<std::ptrdiff_t>(n)]) {
        throw twin::Fault("unified buffer: read of what nothing has written");
      }
    }
  }
  void mark_set(std::uint32_t offset, std::uint32_t count) const {
    const auto first = twin::this_core().is_set.begin() + begin_ + offset * sizeof(T);
    std::fill(first, first + static_cast<std::ptrdiff_t>(count * sizeof(T)), true);
  }

 private:
  std::uint32_t begin_ = 0;
  std::uint32_t num_bytes_ = 0;
};

template <TPosition position = TPosition::VECCALC>
class TBuf {
 public:
  template <class T>
  LocalTensor<T> Get() const {
    return {begin, num_bytes};
  }
  std::uint32_t begin = 0;
  std::uint32_t num_bytes = 0;
};

class TPipe {
 public:
  template <TPosition position>
  bool InitBuffer(TBuf<position>& buffer, std::uint32_t num_bytes) {
    if (++num_buffers_ > 64) throw twin::Fault("more than 64 buffers in one kernel");
    buffer.begin = twin::this_core().reserve(num_bytes);
    buffer.num_bytes = (num_bytes + twin::kBlockBytes - 1) / twin::kBlockBytes * twin::kBlockBytes;
    return true;
  }

  void register_products() {
    if (num_buffers_ > 0) throw twin::Fault("Matmul registered after InitBuffer");
    if (has_products_) throw twin::Fault("Matmul registered twice");
    has_products_ = true;
  }

 private:
  int num_buffers_ = 0;
  bool has_products_ = false;
};

template <HardEvent event>
void SetFlag(std::int32_t id) {
  constexpr int kEvent = static_cast<int>(event);
  twin::this_core().set_flag(static_cast<pipe_t>(kEvent >> 4), static_cast<pipe_t>(kEvent & 15),
                             id);
}

template <HardEvent event>
void WaitFlag(std::int32_t id) {
  constexpr int kEvent = static_cast<int>(event);
  twin::this_core().wait_flag(static_cast<pipe_t>(kEvent >> 4), static_cast<pipe_t>(kEvent & 15),
                              id);
}

template <pipe_t pipe>
void PipeBarrier() {
  static_assert(pipe != PIPE_S, "the scalar pipe has no barrier");
  twin::this_core().barrier(pipe);
}

template <bool is_vector_only = true>
void SyncAll() {
  twin::this_grid().sync_all();
}

template <class T>
void SetAtomicAdd() {
  static_assert(std::is_same_v<T, std::int32_t> || std::is_same_v<T, float>);
  twin::this_core().adds = true;
}
inline void DisableDmaAtomic() { twin::this_core().adds = false; }

// Past the data cache, straight from memory.
template <class T>
T ReadGmByPassDCache(T* address) {
  twin::Core& core = twin::this_core();
  core.look();
  core.memory.check(address, sizeof(T), "scalar read");
  T value;
  std::memcpy(&value, address, sizeof(T));
  return value;
}

template <class T, CacheLine lines, DcciDst target = DcciDst::CACHELINE_OUT>
void DataCacheCleanAndInvalid(const GlobalTensor<T>& tensor) {
  twin::Core& core = twin::this_core();
  core.tick();
  if constexpr (lines == CacheLine::ENTIRE_DATA_CACHE) {
    core.cache.clean_and_invalidate_all();
  } else {
    core.cache.clean_and_invalidate(tensor.GetPhyAddr());
  }
}

template <MemDsbT kind>
void DataSyncBarrier() {
  if (kind == MemDsbT::ALL || kind == MemDsbT::DDR) twin::this_core().cache.await_clean();
}

}  // namespace AscendC

#include "copies.hpp"
#include "matmul.hpp"
#include "vectors.hpp"
