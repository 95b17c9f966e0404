// What both super kernels share: which rows a block computes at once and with which weights, and
// products on its cube core. R rows grouped by expert, I intermediate; matrices lie as in
// checkpoints, [out, in].
#pragma once

#include "item.h"

namespace asap {

// Columns of the table of weight addresses, per layer and then per local expert.
enum Projection : int64_t { kGateUp, kDown, kGateUpScale, kDownScale, kNumProjections };

// Rows of one expert that a block computes at once.
constexpr int64_t kTileRows = 128;

struct SuperKernelCall {
  Address layout, item, results;
  Address weights;    // address of (layer, projection, local expert), uint64
  Address workspace;  // workspace_bytes per block
  Address system;     // for the products of the interface
  Address gate_up_tiling, down_tiling;
  Address status;
  int64_t moe_device, intermediate;
};

// Rows of one expert.
struct Tile {
  int64_t expert, first, num_rows;
};

// Hands the tiles of an item to the blocks in turn.
class Tiles {
 public:
  __aicore__ inline Tiles(const GlobalTensor<int32_t>& num_rows_E, int64_t num_experts)
      : num_rows_E_(num_rows_E), num_experts_(num_experts) {}

  // The next one of this block; false at the end.
  __aicore__ inline bool next(Tile& tile) {
    while (expert_ < num_experts_) {
      const int64_t count = num_rows_E_.GetValue(expert_);
      if (done_ >= count) {
        first_ += count;
        done_ = 0;
        ++expert_;
        continue;
      }
      const int64_t left = count - done_;
      tile = {expert_, first_ + done_, left < kTileRows ? left : kTileRows};
      done_ += tile.num_rows;
      if (number_++ % GetBlockNum() == GetBlockIdx()) return true;
    }
    return false;
  }

 private:
  GlobalTensor<int32_t> num_rows_E_;
  int64_t num_experts_;
  int64_t expert_ = 0, first_ = 0, done_ = 0, number_ = 0;
};

// Where the weights of this item's layer are.
struct Weights {
  Address table;
  int64_t layer, num_experts;

  __aicore__ inline Address at(Projection projection, int64_t expert) const {
    return address_at(table, (layer * kNumProjections + projection) * num_experts + expert);
  }
};

template <class A, class C>
using Product = Matmul<MatmulType<TPosition::GM, CubeFormat::ND, A>,
                       MatmulType<TPosition::GM, CubeFormat::ND, A, true>,
                       MatmulType<TPosition::GM, CubeFormat::ND, C>>;

// to [rows, columns] = a [rows, inner] times b [columns, inner] transposed.
template <class A, class C>
__aicore__ inline void multiply(Product<A, C>& product, Address to, Address a, Address b,
                                const int32_t (&shape)[3]) {
  product.SetOrgShape(shape[0], shape[1], shape[2]);
  product.SetSingleShape(shape[0], shape[1], shape[2]);
  product.SetTensorA(array<A>(a));
  product.SetTensorB(array<A>(b), true);
  product.IterateAll(array<C>(to));
  product.End();
}

__aicore__ inline int64_t whole_lines(int64_t num_bytes) {
  return (num_bytes + kFlagBytes - 1) / kFlagBytes * kFlagBytes;
}

__aicore__ inline TCubeTiling read_tiling(Address from) {
  TCubeTiling tiling;
  const GlobalTensor<int32_t> words = array<int32_t>(from);
  int32_t* values = reinterpret_cast<int32_t*>(&tiling);
  for (uint32_t n = 0; n < sizeof(TCubeTiling) / 4; ++n) values[n] = words.GetValue(n);
  return tiling;
}

// All tiles of this block, by `kernel.compute`; layer and counts are those of the item.
template <class Kernel>
__aicore__ inline void compute_tiles(Kernel& kernel, const SuperKernelCall& call, const Layout& l,
                                     const Item& item) {
  const int64_t num_experts = first_place(l, call.moe_device + 1) - first_place(l, call.moe_device);
  const Weights weights{call.weights, item.head().GetValue(kItemLayer), num_experts};
  Tiles tiles(item.num_rows_E(), num_experts);
  Tile tile;
  while (tiles.next(tile)) kernel.compute(tile, weights);
  PipeBarrier<PIPE_ALL>();
  report(call.status, kOk);
}

}  // namespace asap
