#include "super_kernel.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

namespace asap::ascend {
namespace {

constexpr std::int64_t kNumProjections = 4;  // gate and up, down, and the scales of both in int8
constexpr std::int64_t kTileRows = 128;
constexpr std::int64_t kTilingBytes = 1024;

// csrc/ascend/tiling/tiling.cpp; 0, or why there is no tiling.
using Tile = int (*)(std::int64_t rows, std::int64_t columns, std::int64_t inner,
                     std::int64_t row_type, std::int64_t result_type, void* tiling,
                     std::int64_t num_bytes);

}  // namespace

SuperKernel::SuperKernel(DiePtr die, const Layout& layout, std::int64_t moe_device,
                         RowType row_type, const ExpertWeights& weights)
    : die_(std::move(die)),
      hidden_(layout.hidden),
      moe_device_(moe_device),
      row_type_(row_type),
      shape_(weights),
      num_blocks_(std::max(1, compute_cores(die_->cores()).cube)),
      lane_(die_),
      layout_(die_, sizeof(Layout)),
      gate_up_(die_, weights.num_layers * weights.num_experts * 2 * weights.intermediate * hidden_ *
                         element_bytes()),
      down_(die_, weights.num_layers * weights.num_experts * weights.intermediate * hidden_ *
                      element_bytes()),
      table_(die_, weights.num_layers * kNumProjections * weights.num_experts * 8),
      workspace_(die_, num_blocks_ * workspace_bytes(weights.intermediate, element_bytes())),
      gate_up_tiling_(die_, kTilingBytes),
      down_tiling_(die_, kTilingBytes) {
  layout_.put(&layout, sizeof(Layout));
  gate_up_.put(weights.gate_up, gate_up_.num_bytes());
  down_.put(weights.down, down_.num_bytes());
  fill_table();
  fill_tiling(gate_up_tiling_, 2 * weights.intermediate, hidden_, RowType::float32);
  fill_tiling(down_tiling_, hidden_, weights.intermediate, row_type_);
}

// One address for each (layer, projection, local expert).
void SuperKernel::fill_table() const {
  const std::int64_t matrix = shape_.intermediate * hidden_ * element_bytes();
  std::vector<const std::byte*> addresses;
  for (std::int64_t layer = 0; layer < shape_.num_layers; ++layer) {
    const std::int64_t first = layer * shape_.num_experts;
    for (std::int64_t x = 0; x < shape_.num_experts; ++x) {
      addresses.push_back(gate_up_.address() + (first + x) * 2 * matrix);
    }
    for (std::int64_t x = 0; x < shape_.num_experts; ++x) {
      addresses.push_back(down_.address() + (first + x) * matrix);
    }
    addresses.insert(addresses.end(), static_cast<std::size_t>(2 * shape_.num_experts), nullptr);
  }
  table_.put(addresses.data(), std::ssize(addresses) * 8);
}

void SuperKernel::fill_tiling(const Memory& tiling, std::int64_t columns, std::int64_t inner,
                              RowType result_type) const {
  const std::string file = die_->kernels() + "/" + kTilingFile;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw AclError(std::string("no tilings: ") + dlerror());
  const auto tile = reinterpret_cast<Tile>(dlsym(library, "asap_tiling"));
  std::vector<std::byte> bytes(kTilingBytes);
  const int code = tile == nullptr
                       ? -1
                       : tile(kTileRows, columns, inner, static_cast<std::int64_t>(row_type_),
                              static_cast<std::int64_t>(result_type), bytes.data(), kTilingBytes);
  dlclose(library);
  if (code != 0) {
    throw AclError("asap_tiling of " + file + " returned " + std::to_string(code) + " for [" +
                   std::to_string(kTileRows) + ", " + std::to_string(inner) + "] x [" +
                   std::to_string(inner) + ", " + std::to_string(columns) + "]");
  }
  tiling.put(bytes.data(), kTilingBytes);
}

void SuperKernel::run(const Item& item, void* results) const {
  if (item.num_rows == 0) return;
  lane_.run(
      "asap_super_kernel", num_blocks_,
      {layout_.address(), item.bytes.address(), results, table_.address(), workspace_.address(),
       gate_up_tiling_.address(), down_tiling_.address(), lane_.status(), moe_device_,
       shape_.intermediate, static_cast<std::int64_t>(row_type_)});
}

}  // namespace asap::ascend
