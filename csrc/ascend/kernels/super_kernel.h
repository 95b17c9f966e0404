// The layer-oblivious MoE super kernel (3.4.2): which layer, and how many rows each expert has, is
// read on the device from the item that was received, so one launch serves any layer.
// R rows grouped by expert, H hidden, I intermediate, J = 2 I. Matrices lie as in checkpoints,
// [out, in]. The weighted reduction is step 1 of async-combine-send.
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

// mixed = gate / (1 + exp(-gate)) * up, elementwise in float32; gate is lost.
__aicore__ inline void swiglu(const LocalTensor<float>& mixed, const LocalTensor<float>& gate,
                              const LocalTensor<float>& up, uint32_t width) {
  PipeBarrier<PIPE_V>();
  Muls(mixed, gate, -1.0f, width);
  PipeBarrier<PIPE_V>();
  Exp(mixed, mixed, width);
  PipeBarrier<PIPE_V>();
  Adds(mixed, mixed, 1.0f, width);
  PipeBarrier<PIPE_V>();
  Div(gate, gate, mixed, width);
  PipeBarrier<PIPE_V>();
  Mul(mixed, gate, up, width);
  PipeBarrier<PIPE_V>();
}

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

// Weights and rows of type T.
template <class T>
class SuperKernel {
 public:
  __aicore__ inline explicit SuperKernel(const SuperKernelCall& call)
      : call_(call), l_(read_layout(call.layout)), item_{l_, call.item} {
    const uint32_t width = static_cast<uint32_t>(call.intermediate);
    pipe_.InitBuffer(gate_, width * sizeof(float));
    pipe_.InitBuffer(up_, width * sizeof(float));
    pipe_.InitBuffer(mixed_, width * sizeof(float));
    out_caster_.init(pipe_, width);
    in_caster_.init(pipe_, width);
    gate_up_ = call.workspace + GetBlockIdx() * workspace_bytes(call.intermediate);
    mixed_rows_ = gate_up_ + whole_lines(kTileRows * 2 * call.intermediate * 4);
  }

  __aicore__ inline static int64_t workspace_bytes(int64_t intermediate) {
    return whole_lines(kTileRows * 2 * intermediate * 4) +
           whole_lines(kTileRows * intermediate * static_cast<int64_t>(sizeof(T)));
  }

  __aicore__ inline void run() {
    TCubeTiling tilings[2] = {read_tiling(call_.gate_up_tiling), read_tiling(call_.down_tiling)};
    REGIST_MATMUL_OBJ(&pipe_, GetSysWorkSpacePtr(), gate_up_product_, &tilings[0]);
    REGIST_MATMUL_OBJ(&pipe_, GetSysWorkSpacePtr(), down_product_, &tilings[1]);
    const int64_t num_experts =
        first_expert(l_, call_.moe_device + 1) - first_expert(l_, call_.moe_device);
    const Weights weights{call_.weights, item_.head().GetValue(kItemLayer), num_experts};
    Tiles tiles(item_.num_rows_E(), num_experts);
    Tile tile;
    while (tiles.next(tile)) compute(tile, weights);
    PipeBarrier<PIPE_ALL>();
    report(call_.status, kOk);
  }

 private:
  __aicore__ inline static TCubeTiling read_tiling(Address from) {
    TCubeTiling tiling;
    const GlobalTensor<int32_t> words = array<int32_t>(from);
    int32_t* values = reinterpret_cast<int32_t*>(&tiling);
    for (uint32_t n = 0; n < sizeof(TCubeTiling) / 4; ++n) values[n] = words.GetValue(n);
    return tiling;
  }

  __aicore__ inline void compute(const Tile& tile, const Weights& weights) {
    const int32_t rows = static_cast<int32_t>(tile.num_rows);
    const int32_t hidden = static_cast<int32_t>(l_.hidden);
    const int32_t width = static_cast<int32_t>(call_.intermediate);
    multiply<T, float>(gate_up_product_, gate_up_, item_.rows() + tile.first * l_.row_bytes,
                       weights.at(kGateUp, tile.expert), {rows, 2 * width, hidden});
    for (int64_t n = 0; n < tile.num_rows; ++n) activate(n);
    PipeBarrier<PIPE_ALL>();  // mixed rows before they are multiplied
    multiply<T, T>(down_product_, call_.results + tile.first * l_.row_bytes, mixed_rows_,
                   weights.at(kDown, tile.expert), {rows, hidden, width});
  }

  __aicore__ inline void activate(int64_t n) {
    const int64_t width = call_.intermediate;
    const LocalTensor<float> gate = gate_.template Get<float>();
    const LocalTensor<float> up = up_.template Get<float>();
    const LocalTensor<float> mixed = mixed_.template Get<float>();
    in_caster_.load(gate, gate_up_ + n * 2 * width * 4);
    in_caster_.load(up, gate_up_ + (n * 2 + 1) * width * 4);
    swiglu(mixed, gate, up, static_cast<uint32_t>(width));
    out_caster_.store(mixed_rows_ + n * width * static_cast<int64_t>(sizeof(T)), mixed);
  }

  const SuperKernelCall call_;
  const Layout l_;
  const Item item_;
  TPipe pipe_;
  Product<T, float> gate_up_product_;
  Product<T, T> down_product_;
  RowCaster<float> in_caster_;
  RowCaster<T> out_caster_;
  TBuf<TPosition::VECCALC> gate_, up_, mixed_;
  Address gate_up_;
  Address mixed_rows_;
};

}  // namespace asap
