// DataCopy and DataCopyPad: no copy is atomic, its pieces come in any order.
#pragma once

#include <atomic>

#include "kernel_operator.h"

namespace AscendC {

// Blocks of bytes between two places.
struct Blocks {
  std::uint8_t* to;
  const std::uint8_t* from;
  std::uint64_t count, num_bytes, to_step, from_step;
};

// Copies a piece at a time, from a random one on.
class CopyInPieces {
 public:
  explicit CopyInPieces(const Blocks& blocks) : blocks_(blocks) {}

  template <class Copy>
  bool advance(twin::Random& random, Copy copy) {
    const std::uint64_t in_block = (blocks_.num_bytes + kPieceBytes - 1) / kPieceBytes;
    const std::uint64_t total = in_block * blocks_.count;
    if (done_ == 0) first_ = random() % total;
    for (std::uint64_t burst = 1 + random() % 4; burst > 0 && done_ < total; --burst, ++done_) {
      const std::uint64_t piece = (first_ + done_) % total;
      const std::uint64_t block = piece / in_block, skip = piece % in_block * kPieceBytes;
      copy(blocks_.to + block * blocks_.to_step + skip,
           blocks_.from + block * blocks_.from_step + skip,
           std::min(kPieceBytes, blocks_.num_bytes - skip));
    }
    return done_ == total;
  }

 private:
  static constexpr std::uint64_t kPieceBytes = 64;
  Blocks blocks_;
  std::uint64_t first_ = 0;
  std::uint64_t done_ = 0;
};

template <class T>
void check_copy(const GlobalTensor<T>& global, std::uint32_t local, const DataCopyExtParams& how) {
  if (local % twin::kBlockBytes != 0) throw twin::Fault("DataCopy: unified buffer not at 32 B");
  if (how.blockCount > 4095 || how.blockLen > 2097151 || how.blockLen % sizeof(T) != 0) {
    throw twin::Fault("DataCopyPad: " + std::to_string(how.blockCount) + " blocks of " +
                      std::to_string(how.blockLen) + " bytes");
  }
  if (reinterpret_cast<std::uintptr_t>(global.GetPhyAddr()) % sizeof(T) != 0) {
    throw twin::Fault("DataCopy: global memory not aligned to its element");
  }
}

inline std::uint64_t padded(std::uint64_t num_bytes) {
  return (num_bytes + twin::kBlockBytes - 1) / twin::kBlockBytes * twin::kBlockBytes;
}

template <class T>
void DataCopyPad(const LocalTensor<T>& to, const GlobalTensor<T>& from,
                 const DataCopyExtParams& how, const DataCopyPadExtParams<T>&) {
  check_copy(from, to.begin(), how);
  if (how.blockCount == 0 || how.blockLen == 0) return;
  twin::Core& core = twin::this_core();
  const std::uint64_t local_step = padded(how.blockLen) + how.dstStride * twin::kBlockBytes;
  const std::uint64_t global_step = how.blockLen + how.srcStride;
  const auto* source = reinterpret_cast<const std::uint8_t*>(from.GetPhyAddr());
  core.memory.check(source, (how.blockCount - 1) * global_step + how.blockLen, "copy in");
  auto* unified = reinterpret_cast<std::uint8_t*>(core.unified.data());
  const twin::Touch touch =
      to.touch(0, ((how.blockCount - 1) * local_step + padded(how.blockLen)) / sizeof(T), true);
  CopyInPieces pieces(
      {unified + to.begin(), source, how.blockCount, how.blockLen, local_step, global_step});
  core.issue(PIPE_MTE2, {touch}, [pieces, &core, unified](twin::Random& random) mutable {
    return pieces.advance(random, [&](std::uint8_t* target, const std::uint8_t* bytes, auto size) {
      std::memcpy(target, bytes, size);
      const auto first = core.is_set.begin() + (target - unified);
      std::fill(first, first + static_cast<std::ptrdiff_t>(size), true);
    });
  });
}

template <class T>
void add_elements(std::uint8_t* to, const std::uint8_t* from, std::uint64_t num_bytes) {
  if constexpr (std::is_arithmetic_v<T> && sizeof(T) == 4) {
    for (std::uint64_t n = 0; n < num_bytes; n += sizeof(T)) {
      T term;
      std::memcpy(&term, from + n, sizeof(T));
      // Devices of other processes may add to the same word.
      std::atomic_ref<T>(*reinterpret_cast<T*>(to + n)) += term;
    }
  } else {
    throw twin::Fault("atomic add of an element type that is not int32 or float");
  }
}

template <class T>
void DataCopyPad(const GlobalTensor<T>& to, const LocalTensor<T>& from,
                 const DataCopyExtParams& how) {
  check_copy(to, from.begin(), how);
  if (how.blockCount == 0 || how.blockLen == 0) return;
  twin::Core& core = twin::this_core();
  const std::uint64_t local_step = padded(how.blockLen) + how.srcStride * twin::kBlockBytes;
  const std::uint64_t global_step = how.blockLen + how.dstStride;
  auto* target = reinterpret_cast<std::uint8_t*>(to.address());
  core.memory.check(target, (how.blockCount - 1) * global_step + how.blockLen, "copy out");
  auto* unified = reinterpret_cast<std::uint8_t*>(core.unified.data());
  const twin::Touch touch =
      from.touch(0, ((how.blockCount - 1) * local_step + how.blockLen) / sizeof(T), false);
  CopyInPieces pieces(
      {target, unified + from.begin(), how.blockCount, how.blockLen, global_step, local_step});
  core.issue(
      PIPE_MTE3, {touch}, [pieces, &core, unified, adds = core.adds](twin::Random& random) mutable {
        return pieces.advance(random, [&](std::uint8_t* out, const std::uint8_t* bytes, auto size) {
          const auto first = core.is_set.begin() + (bytes - unified);
          if (std::find(first, first + static_cast<std::ptrdiff_t>(size), false) !=
              first + static_cast<std::ptrdiff_t>(size)) {
            throw twin::Fault("copy out of what nothing has written");
          }
          adds ? add_elements<T>(out, bytes, size) : (void)std::memcpy(out, bytes, size);
        });
      });
}

// The hardware drops what does not fill a block of 32 B; here that is a fault.
template <class T>
void check_whole_blocks(std::uint32_t count) {
  if (count * sizeof(T) % twin::kBlockBytes != 0) {
    throw twin::Fault("DataCopy of " + std::to_string(count * sizeof(T)) +
                      " bytes: the hardware truncates to blocks of 32");
  }
}

template <class T>
void DataCopy(const LocalTensor<T>& to, const GlobalTensor<T>& from, std::uint32_t count) {
  check_whole_blocks<T>(count);
  DataCopyPad(to, from, {1, static_cast<std::uint32_t>(count * sizeof(T)), 0, 0, 0}, {});
}

template <class T>
void DataCopy(const GlobalTensor<T>& to, const LocalTensor<T>& from, std::uint32_t count) {
  check_whole_blocks<T>(count);
  DataCopyPad(to, from, {1, static_cast<std::uint32_t>(count * sizeof(T)), 0, 0, 0});
}

}  // namespace AscendC
