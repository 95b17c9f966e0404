// The super kernel in W8A8: weights in int8 with a float scale per output, rows quantised here with
// a scale each. Products are exact in int32. The counterpart of asap_ray/models/int8_experts.py.
#pragma once

#include "super_kernel.h"

namespace asap {

// Rows of floats as int8, their largest number 127; a row of zeros has the scale 1.
class Quantiser {
 public:
  __aicore__ inline void init(TPipe& pipe, uint32_t max_width) {
    pipe.InitBuffer(scales_, max_width * sizeof(float));
    pipe.InitBuffer(work_, max_width * sizeof(float));
    pipe.InitBuffer(half_, max_width * sizeof(half));
    pipe.InitBuffer(int8_, max_width);
    pipe.InitBuffer(largest_, 32);
  }

  // Writes the row and returns its scale; the copy may still run. `row` is lost.
  __aicore__ inline float quantise(Address to, const LocalTensor<float>& row, uint32_t width) {
    const LocalTensor<float> scales = scales_.Get<float>();
    const LocalTensor<int8_t> narrow = int8_.Get<int8_t>();
    const float scale = scale_of(row, width);
    Duplicate(scales, scale, width);
    PipeBarrier<PIPE_V>();
    Div(row, row, scales, width);
    PipeBarrier<PIPE_V>();
    round(narrow, row, width);
    order<HardEvent::V_MTE3>();
    DataCopyPad(array<int8_t>(to), narrow, {1, width, 0, 0, 0});
    return scale;
  }

 private:
  __aicore__ inline float scale_of(const LocalTensor<float>& row, uint32_t width) {
    const LocalTensor<float> sizes = scales_.Get<float>();
    const LocalTensor<float> largest = largest_.Get<float>();
    order<HardEvent::S_V>();
    PipeBarrier<PIPE_V>();
    Abs(sizes, row, width);
    PipeBarrier<PIPE_V>();
    ReduceMax(largest, sizes, work_.Get<float>(), static_cast<int32_t>(width));
    order<HardEvent::V_S>();
    const float value = largest.GetValue(0);
    PipeBarrier<PIPE_V>();
    return value > 0 ? value / 127 : 1.0f;
  }

  // To the nearest integer by way of int32; from there every step is exact.
  __aicore__ inline void round(const LocalTensor<int8_t>& to, const LocalTensor<float>& row,
                               uint32_t width) {
    const LocalTensor<int32_t> integers = work_.Get<int32_t>();
    const LocalTensor<half> halves = half_.Get<half>();
    order<HardEvent::MTE3_V>();
    Cast(integers, row, RoundMode::CAST_RINT, width);
    PipeBarrier<PIPE_V>();
    Cast(row, integers, RoundMode::CAST_NONE, width);
    PipeBarrier<PIPE_V>();
    Cast(halves, row, RoundMode::CAST_NONE, width);
    PipeBarrier<PIPE_V>();
    Cast(to, halves, RoundMode::CAST_NONE, width);
    PipeBarrier<PIPE_V>();
  }

  TBuf<TPosition::VECCALC> scales_, work_, half_, int8_, largest_;
};

// Rows of type T.
template <class T>
class Int8SuperKernel {
 public:
  __aicore__ inline explicit Int8SuperKernel(const SuperKernelCall& call)
      : call_(call), l_(read_layout(call.layout)), item_{l_, call.item} {
    const Space space = space_of(l_.hidden, call.intermediate);
    quantised_ = call.workspace + GetBlockIdx() * space.num_bytes;
    products_ = quantised_ + space.quantised_bytes;
  }

  __aicore__ inline static int64_t workspace_bytes(int64_t hidden, int64_t intermediate) {
    return space_of(hidden, intermediate).num_bytes;
  }

  // As SuperKernel::run.
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
    for (int64_t n = 0; n < rows; ++n) quantise_row(tile, n);
    PipeBarrier<PIPE_ALL>();  // quantised rows before they are multiplied
    multiply<int8_t, int32_t>(gate_up_product_, products_, quantised_,
                              weights.at(kGateUp, tile.expert), {rows, 2 * width, hidden});
    for (int64_t n = 0; n < rows; ++n) activate(n, weights.at(kGateUpScale, tile.expert));
    PipeBarrier<PIPE_ALL>();  // mixed rows before they are multiplied
    multiply<int8_t, int32_t>(down_product_, products_, quantised_, weights.at(kDown, tile.expert),
                              {rows, hidden, width});
    for (int64_t n = 0; n < rows; ++n) store_row(tile, n, weights.at(kDownScale, tile.expert));
    PipeBarrier<PIPE_ALL>();  // products read before the next tile's
  }

 private:
  struct Space {
    int64_t quantised_bytes, num_bytes;
  };
  __aicore__ inline static Space space_of(int64_t hidden, int64_t intermediate) {
    const int64_t inner = hidden > intermediate ? hidden : intermediate;
    const int64_t outer = hidden > 2 * intermediate ? hidden : 2 * intermediate;
    const int64_t quantised = whole_lines(kTileRows * inner);
    return {quantised, quantised + whole_lines(kTileRows * outer * 4)};
  }

  __aicore__ inline void init_buffers() {
    const uint32_t width = static_cast<uint32_t>(call_.intermediate);
    const uint32_t hidden = static_cast<uint32_t>(l_.hidden);
    const uint32_t widest = width > hidden ? width : hidden;
    pipe_.InitBuffer(gate_, widest * sizeof(float));
    pipe_.InitBuffer(up_, widest * sizeof(float));
    pipe_.InitBuffer(product_, widest * sizeof(float));
    pipe_.InitBuffer(row_scales_, kTileRows * 4);
    quantiser_.init(pipe_, widest);
    row_caster_.init(pipe_, hidden);
  }

  __aicore__ inline void quantise_row(const Tile& tile, int64_t n) {
    const LocalTensor<float> row = gate_.template Get<float>();
    row_caster_.load(row, item_.rows() + (tile.first + n) * l_.row_bytes);
    remember(
        n, quantiser_.quantise(quantised_ + n * l_.hidden, row, static_cast<uint32_t>(l_.hidden)));
  }

  __aicore__ inline void activate(int64_t n, Address scales) {
    const int64_t width = call_.intermediate;
    const LocalTensor<float> gate = gate_.template Get<float>();
    const LocalTensor<float> up = up_.template Get<float>();
    const LocalTensor<float> mixed = product_.template Get<float>();
    const Address products = products_ + n * 2 * width * 4;
    load_product(gate, products, scales, n, width);
    load_product(up, products + width * 4, scales + width * 4, n, width);
    swiglu(mixed, gate, up, static_cast<uint32_t>(width));
    remember(n, quantiser_.quantise(quantised_ + n * width, mixed, static_cast<uint32_t>(width)));
  }

  __aicore__ inline void store_row(const Tile& tile, int64_t n, Address scales) {
    const LocalTensor<float> row = gate_.template Get<float>();
    load_product(row, products_ + n * l_.hidden * 4, scales, n, l_.hidden);
    row_caster_.store(call_.results + (tile.first + n) * l_.row_bytes, row);
  }

  // A row of a product as floats: times the scale of the row, times the scale of each column.
  __aicore__ inline void load_product(const LocalTensor<float>& to, Address from, Address scales,
                                      int64_t n, int64_t columns) {
    const uint32_t width = static_cast<uint32_t>(columns);
    const LocalTensor<int32_t> integers = product_.template Get<int32_t>();
    const LocalTensor<float> column_scales = product_.template Get<float>();
    order<HardEvent::V_MTE2>();
    DataCopyPad(integers, array<int32_t>(from), {1, width * 4, 0, 0, 0},
                DataCopyPadExtParams<int32_t>{});
    order<HardEvent::MTE2_V>();
    PipeBarrier<PIPE_V>();
    Cast(to, integers, RoundMode::CAST_NONE, width);
    order<HardEvent::V_MTE2>();
    DataCopyPad(column_scales, array<float>(scales), {1, width * 4, 0, 0, 0},
                DataCopyPadExtParams<float>{});
    order<HardEvent::MTE2_V>();
    PipeBarrier<PIPE_V>();
    Muls(to, to, row_scales_.template Get<float>().GetValue(static_cast<uint32_t>(n)), width);
    PipeBarrier<PIPE_V>();
    Mul(to, to, column_scales, width);
    PipeBarrier<PIPE_V>();
  }

  __aicore__ inline void remember(int64_t n, float scale) {
    row_scales_.template Get<float>().SetValue(static_cast<uint32_t>(n), scale);
  }

  const SuperKernelCall call_;
  const Layout l_;
  const Item item_;
  TPipe pipe_;
  Product<int8_t, int32_t> gate_up_product_, down_product_;
  Quantiser quantiser_;
  RowCaster<T> row_caster_;
  TBuf<TPosition::VECCALC> gate_, up_, product_, row_scales_;
  Address quantised_;
  Address products_;
};

}  // namespace asap
