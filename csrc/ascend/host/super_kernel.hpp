// The experts of one MoE device, of all layers, and the kernel that computes on an item (3.4.2).
#pragma once

#include <memory>

#include "moe_comm.hpp"
#include "tiling_library.hpp"

namespace asap::ascend {

// Weights as they lie in the caller's memory: gate and up [L, E, 2 I, H], down [L, E, H, I]. Of the
// type rows travel in, or int8 (W8A8) with a float scale for each output: [L, E, 2 I], [L, E, H].
struct ExpertWeights {
  const void* gate_up;
  const void* down;
  const void* gate_up_scale;  // null unless int8, as the next one
  const void* down_scale;
  std::int64_t num_layers, num_experts, intermediate;

  bool is_int8() const { return gate_up_scale != nullptr; }
};

class SuperKernel {
 public:
  // Copies the weights to the die. Throws AclError.
  SuperKernel(DiePtr die, const Layout& layout, std::int64_t moe_device, RowType row_type,
              const ExpertWeights& weights);

  // Unweighted results of every row, to an address on the die; layer and counts are read there.
  void run(const Item& item, void* results) const;

 private:
  // Of all layers and experts: their matrices, and the scales of their outputs.
  struct Projection {
    Projection(const DiePtr& die, std::int64_t count, std::int64_t matrix_bytes,
               std::int64_t scale_bytes)
        : matrix_bytes(matrix_bytes),
          scale_bytes(scale_bytes),
          matrices(die, count * matrix_bytes),
          scales(die, count * scale_bytes) {}

    const std::byte* matrix(std::int64_t n) const { return matrices.address() + n * matrix_bytes; }
    const std::byte* scale(std::int64_t n) const {
      return scale_bytes == 0 ? nullptr : scales.address() + n * scale_bytes;
    }

    const std::int64_t matrix_bytes, scale_bytes;
    const Memory matrices, scales;
  };

  Projection projection(std::int64_t outputs, std::int64_t inputs) const;
  std::int64_t block_bytes() const;
  void fill_table() const;
  void fill_tilings() const;

  const DiePtr die_;
  const std::int64_t hidden_, moe_device_;
  const RowType row_type_;
  const ExpertWeights shape_;
  const int num_blocks_;
  const Lane lane_;
  const TilingLibrary tilings_;
  const Projection gate_up_, down_;
  const Memory layout_, table_, workspace_, system_, gate_up_tiling_, down_tiling_;
};

}  // namespace asap::ascend
