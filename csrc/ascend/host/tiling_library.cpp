#include "tiling_library.hpp"

#include <dlfcn.h>

#include <cstddef>
#include <string>
#include <vector>

#include "asap/errors.hpp"
#include "private_memory.hpp"

namespace asap::ascend {
namespace {

// csrc/ascend/tiling/tiling.cpp; the first returns 0, or why there is no tiling.
using Tile = int (*)(std::int64_t rows, std::int64_t columns, std::int64_t inner, std::int64_t type,
                     std::int64_t result, void* tiling, std::int64_t num_bytes);
using SystemBytes = std::int64_t (*)();

}  // namespace

TilingLibrary::TilingLibrary(const Die& die)
    : file_(die.kernels() + "/" + kTilingFile), library_(dlopen(file_.c_str(), RTLD_NOW)) {
  if (library_ == nullptr) throw AclError(std::string("no tilings: ") + dlerror());
}

TilingLibrary::~TilingLibrary() { dlclose(library_); }

void* TilingLibrary::function(const char* name) const {
  void* found = dlsym(library_, name);
  if (found == nullptr) throw AclError(file_ + " has no " + name + "; run make ascend again");
  return found;
}

std::int64_t TilingLibrary::system_bytes() const {
  return reinterpret_cast<SystemBytes>(function("asap_system_bytes"))();
}

void TilingLibrary::put(const Memory& tiling, const Product& product) const {
  const auto [columns, inner, type, result] = product;
  std::vector<std::byte> bytes(kTilingBytes);
  const int code = reinterpret_cast<Tile>(function("asap_tiling"))(
      kTileRows, columns, inner, static_cast<std::int64_t>(type), static_cast<std::int64_t>(result),
      bytes.data(), kTilingBytes);
  if (code != 0) {
    throw AclError(text("asap_tiling of ", file_, " returned ", code, " for [", kTileRows, ", ",
                        inner, "] x [", inner, ", ", columns, "]"));
  }
  tiling.put(bytes.data(), kTilingBytes);
}

}  // namespace asap::ascend
