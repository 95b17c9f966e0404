// The layer-oblivious MoE super kernel (3.4.2): which layer, and how many rows each expert has, is
// read on the device from the item that was received, so one launch serves any layer.
// R rows grouped by expert, H hidden, I intermediate, J = 2 I. The weighted reduction is step 1 of
// async-combine-send.
#pragma once

#include "tiles.h"

namespace asap {

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

// Weights and rows of type T.
template <class T>
class SuperKernel {
 public:
  __aicore__ inline explicit SuperKernel(const SuperKernelCall& call)
      : call_(call), l_(read_layout(call.layout)), item_{l_, call.item} {
    gate_up_ = call.workspace + GetBlockIdx() * workspace_bytes(call.intermediate);
    mixed_rows_ = gate_up_ + whole_lines(kTileRows * 2 * call.intermediate * 4);
  }

  __aicore__ inline static int64_t workspace_bytes(int64_t intermediate) {
    return whole_lines(kTileRows * 2 * intermediate * 4) +
           whole_lines(kTileRows * intermediate * static_cast<int64_t>(sizeof(T)));
  }

  // A cube core serves the products until the end and returns from here, so both are named at once,
  // and before the first buffer, as the interface wants it.
  __aicore__ inline void run() {
    TCubeTiling gate_up = read_tiling(call_.gate_up_tiling);
    TCubeTiling down = read_tiling(call_.down_tiling);
    SetSysWorkspace(call_.system);
    REGIST_MATMUL_OBJ(&pipe_, GetSysWorkSpacePtr(), gate_up_product_, &gate_up, down_product_,
                      &down);
    init_buffers();
    compute_tiles(*this, call_, l_, item_);
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

 private:
  __aicore__ inline void init_buffers() {
    const uint32_t width = static_cast<uint32_t>(call_.intermediate);
    pipe_.InitBuffer(gate_, width * sizeof(float));
    pipe_.InitBuffer(up_, width * sizeof(float));
    pipe_.InitBuffer(mixed_, width * sizeof(float));
    out_caster_.init(pipe_, width);
    in_caster_.init(pipe_, width);
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
