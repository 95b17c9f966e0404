// Moving bytes and summing rows, through the unified buffer of one core.
#pragma once

#include "sync.h"

namespace asap {

// Two buffers in turn, so that one fills while the other empties.
class Mover {
 public:
  __aicore__ inline void init(TPipe& pipe) {
    for (auto& buffer : buffers_) pipe.InitBuffer(buffer, kChunkBytes);
    for (int32_t b = 0; b < 2; ++b) SetFlag<HardEvent::MTE3_MTE2>(b);
  }

  __aicore__ inline void move(Address to, Address from, int64_t num_bytes) {
    for (int64_t done = 0; done < num_bytes; done += kChunkBytes) {
      const int64_t left = num_bytes - done;
      move_chunk(to + done, from + done,
                 static_cast<uint32_t>(left < kChunkBytes ? left : kChunkBytes));
    }
  }

  // Every copy is in memory.
  __aicore__ inline void finish() {
    for (int32_t b = 0; b < 2; ++b) WaitFlag<HardEvent::MTE3_MTE2>(b);
    PipeBarrier<PIPE_ALL>();
  }

 private:
  static constexpr int64_t kChunkBytes = 16 << 10;

  __aicore__ inline void move_chunk(Address to, Address from, uint32_t num_bytes) {
    const int32_t b = turn_;
    turn_ = 1 - turn_;
    const LocalTensor<uint8_t> chunk = buffers_[b].template Get<uint8_t>();
    WaitFlag<HardEvent::MTE3_MTE2>(b);  // the buffer is empty again
    DataCopyPad(chunk, array<uint8_t>(from), {1, num_bytes, 0, 0, 0},
                DataCopyPadExtParams<uint8_t>{});
    SetFlag<HardEvent::MTE2_MTE3>(b);
    WaitFlag<HardEvent::MTE2_MTE3>(b);  // the buffer is full
    DataCopyPad(array<uint8_t>(to), chunk, {1, num_bytes, 0, 0, 0});
    SetFlag<HardEvent::MTE3_MTE2>(b);
  }

  TBuf<TPosition::VECCALC> buffers_[2];
  int32_t turn_ = 0;
};

// A row of `width` elements of type T as floats, and back.
template <class T>
class RowCaster {
 public:
  __aicore__ inline void init(TPipe& pipe, uint32_t width) {
    width_ = width;
    pipe.InitBuffer(narrow_, width * sizeof(T));
  }

  // Into `wide`. Everything the vector pipe has done comes before it, and it before what follows.
  __aicore__ inline void load(const LocalTensor<float>& wide, Address from) {
    const LocalTensor<T> row = narrow_.template Get<T>();
    order<HardEvent::V_MTE2>();
    order<HardEvent::MTE3_MTE2>();
    DataCopyPad(row, array<T>(from), {1, static_cast<uint32_t>(width_ * sizeof(T)), 0, 0, 0},
                DataCopyPadExtParams<T>{});
    order<HardEvent::MTE2_V>();
    PipeBarrier<PIPE_V>();
    Cast(wide, row, RoundMode::CAST_NONE, width_);
    PipeBarrier<PIPE_V>();
  }

  // From `wide`; the copy may still run when it returns.
  __aicore__ inline void store(Address to, const LocalTensor<float>& wide) {
    const LocalTensor<T> row = narrow_.template Get<T>();
    order<HardEvent::MTE3_V>();
    PipeBarrier<PIPE_V>();
    Cast(row, wide, RoundMode::CAST_RINT, width_);
    order<HardEvent::V_MTE3>();
    DataCopyPad(array<T>(to), row, {1, static_cast<uint32_t>(width_ * sizeof(T)), 0, 0, 0});
  }

 private:
  TBuf<TPosition::VECCALC> narrow_;
  uint32_t width_ = 0;
};

// Float rows need no cast.
template <>
class RowCaster<float> {
 public:
  __aicore__ inline void init(TPipe&, uint32_t width) { width_ = width; }

  __aicore__ inline void load(const LocalTensor<float>& wide, Address from) {
    order<HardEvent::V_MTE2>();
    order<HardEvent::MTE3_MTE2>();
    DataCopyPad(wide, array<float>(from), {1, width_ * 4, 0, 0, 0}, DataCopyPadExtParams<float>{});
    order<HardEvent::MTE2_V>();
  }

  __aicore__ inline void store(Address to, const LocalTensor<float>& wide) {
    order<HardEvent::V_MTE3>();
    DataCopyPad(array<float>(to), wide, {1, width_ * 4, 0, 0, 0});
    order<HardEvent::MTE3_V>();
  }

 private:
  uint32_t width_ = 0;
};

// One summand: weight * rows[row].
struct Terms {
  GlobalTensor<int32_t> begin;  // per sum, and the end
  GlobalTensor<int32_t> rows;
  GlobalTensor<float> weights;
};

template <class T>
class RowSum {
 public:
  __aicore__ inline void init(TPipe& pipe, uint32_t width) {
    width_ = width;
    pipe.InitBuffer(sum_, width * sizeof(float));
    pipe.InitBuffer(row_, width * sizeof(float));
    caster_.init(pipe, width);
  }

  // to = sum number n of rows of `from`, added in float32 in the order of its terms.
  __aicore__ inline void sum(Address to, Address from, const Terms& terms, int64_t n) {
    const LocalTensor<float> sum = sum_.template Get<float>();
    const LocalTensor<float> row = row_.template Get<float>();
    PipeBarrier<PIPE_V>();
    Duplicate(sum, 0.0f, width_);
    const int64_t end = terms.begin.GetValue(n + 1);
    for (int64_t t = terms.begin.GetValue(n); t < end; ++t) {
      const int64_t row_bytes = static_cast<int64_t>(width_ * sizeof(T));
      caster_.load(row, from + terms.rows.GetValue(t) * row_bytes);
      Axpy(sum, row, terms.weights.GetValue(t), width_);
    }
    caster_.store(to, sum);
  }

 private:
  RowCaster<T> caster_;
  TBuf<TPosition::VECCALC> sum_;
  TBuf<TPosition::VECCALC> row_;
  uint32_t width_ = 0;
};

}  // namespace asap
