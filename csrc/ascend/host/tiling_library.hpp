// The library of csrc/ascend/tiling, which `make ascend` leaves beside the kernels.
#pragma once

#include <cstdint>

#include "die.hpp"

namespace asap::ascend {

inline constexpr std::int64_t kTilingBytes = 1024;

// As csrc/ascend/tiling numbers them; the first three are those of a RowType.
enum class ElementType : std::int64_t { float32, bfloat16, float16, int8, int32 };

// A product [128, inner] x [columns, inner] transposed.
struct Product {
  std::int64_t columns, inner;
  ElementType type, result;
};

class TilingLibrary {
 public:
  // Throws AclError when it is not there.
  explicit TilingLibrary(const Die& die);
  ~TilingLibrary();
  TilingLibrary(const TilingLibrary&) = delete;
  TilingLibrary& operator=(const TilingLibrary&) = delete;

  // What the products of a kernel want for themselves.
  std::int64_t system_bytes() const;
  // How a product is cut, to kTilingBytes on the die. Throws AclError when it cannot be.
  void put(const Memory& tiling, const Product& product) const;

 private:
  void* function(const char* name) const;

  std::string file_;
  void* library_;
};

}  // namespace asap::ascend
