// The experts of one MoE device, of all layers, and the kernel that computes on an item (3.4.2).
#pragma once

#include <memory>

#include "moe_comm.hpp"

namespace asap::ascend {

// Weights as they lie in the caller's memory, of the type rows travel in: gate and up
// [L, E, 2 I, H], down [L, E, H, I].
struct ExpertWeights {
  const void* gate_up;
  const void* down;
  std::int64_t num_layers, num_experts, intermediate;
};

class SuperKernel {
 public:
  // Copies the weights to the die. Throws AclError.
  SuperKernel(DiePtr die, const Layout& layout, std::int64_t moe_device, RowType row_type,
              const ExpertWeights& weights);

  // Unweighted results of every row, to an address on the die; layer and counts are read there.
  void run(const Item& item, void* results) const;

 private:
  void fill_table() const;
  void fill_tiling(const Memory& tiling, std::int64_t columns, std::int64_t inner,
                   RowType result_type) const;
  std::int64_t element_bytes() const { return row_type_ == RowType::float32 ? 4 : 2; }

  const DiePtr die_;
  const std::int64_t hidden_, moe_device_;
  const RowType row_type_;
  const ExpertWeights shape_;
  const int num_blocks_;
  const Lane lane_;
  const Memory layout_, gate_up_, down_, table_, workspace_, gate_up_tiling_, down_tiling_;
};

}  // namespace asap::ascend
