#include "super_kernel.hpp"

#include <algorithm>
#include <utility>

namespace asap::ascend {
namespace {

constexpr std::int64_t kNumProjections = 4;  // gate and up, down, and the scales of both in int8

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
      tilings_(*die_),
      gate_up_(projection(2 * weights.intermediate, hidden_)),
      down_(projection(hidden_, weights.intermediate)),
      layout_(die_, sizeof(Layout)),
      table_(die_, weights.num_layers * kNumProjections * weights.num_experts * 8),
      workspace_(die_, num_blocks_ * block_bytes()),
      system_(die_, tilings_.system_bytes()),
      gate_up_tiling_(die_, kTilingBytes),
      down_tiling_(die_, kTilingBytes) {
  layout_.put(&layout, sizeof(Layout));
  gate_up_.matrices.put(weights.gate_up, gate_up_.matrices.num_bytes());
  down_.matrices.put(weights.down, down_.matrices.num_bytes());
  if (weights.is_int8()) {
    gate_up_.scales.put(weights.gate_up_scale, gate_up_.scales.num_bytes());
    down_.scales.put(weights.down_scale, down_.scales.num_bytes());
  }
  fill_table();
  fill_tilings();
}

SuperKernel::Projection SuperKernel::projection(std::int64_t outputs, std::int64_t inputs) const {
  const std::int64_t count = shape_.num_layers * shape_.num_experts;
  const std::int64_t element = shape_.is_int8() ? 1 : element_bytes(row_type_);
  return {die_, count, outputs * inputs * element, shape_.is_int8() ? outputs * 4 : 0};
}

std::int64_t SuperKernel::block_bytes() const {
  return shape_.is_int8() ? int8_workspace_bytes(hidden_, shape_.intermediate)
                          : workspace_bytes(shape_.intermediate, element_bytes(row_type_));
}

// One address for each (layer, projection, local expert).
void SuperKernel::fill_table() const {
  std::vector<const std::byte*> addresses;
  for (std::int64_t layer = 0; layer < shape_.num_layers; ++layer) {
    const std::int64_t first = layer * shape_.num_experts, end = first + shape_.num_experts;
    for (std::int64_t n = first; n < end; ++n) addresses.push_back(gate_up_.matrix(n));
    for (std::int64_t n = first; n < end; ++n) addresses.push_back(down_.matrix(n));
    for (std::int64_t n = first; n < end; ++n) addresses.push_back(gate_up_.scale(n));
    for (std::int64_t n = first; n < end; ++n) addresses.push_back(down_.scale(n));
  }
  table_.put(addresses.data(), std::ssize(addresses) * 8);
}

void SuperKernel::fill_tilings() const {
  const auto rows = static_cast<ElementType>(row_type_);
  const bool is_int8 = shape_.is_int8();
  const ElementType type = is_int8 ? ElementType::int8 : rows;
  tilings_.put(gate_up_tiling_, {.columns = 2 * shape_.intermediate,
                                 .inner = hidden_,
                                 .type = type,
                                 .result = is_int8 ? ElementType::int32 : ElementType::float32});
  tilings_.put(down_tiling_, {.columns = hidden_,
                              .inner = shape_.intermediate,
                              .type = type,
                              .result = is_int8 ? ElementType::int32 : rows});
}

void SuperKernel::run(const Item& item, void* results) const {
  if (item.num_rows == 0) return;
  lane_.run(
      shape_.is_int8() ? "asap_super_kernel_int8" : "asap_super_kernel", num_blocks_,
      {layout_.address(), item.bytes.address(), results, table_.address(), workspace_.address(),
       system_.address(), gate_up_tiling_.address(), down_tiling_.address(), lane_.status(),
       moe_device_, shape_.intermediate, static_cast<std::int64_t>(row_type_)});
}

}  // namespace asap::ascend
