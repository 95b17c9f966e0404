// Flags, waits and their orders: no other file of the kernels touches a flag word.
//
// What a release and an acquire are here. A pipe finishes its copies in any order, so a payload is
// ordered before its flag by PipeBarrier alone; SetFlag and WaitFlag order pipes, not copies. What
// several cores have written is complete when each has passed PipeBarrier<PIPE_ALL> and all have
// passed SyncAll. A scalar read past the data cache comes before any copy that is issued after it.
// A flag is added to, by DMA, since this hardware has no other atomic: one peer may only add a bit
// that is clear, and only the owner of the buffer takes bits away.
#pragma once

#include "views.h"

namespace asap {

// What a kernel leaves in its status: code, then what it was about.
constexpr int32_t kOk = 0;
constexpr int32_t kTimeout = 1;  // place or slot, mask of the peers that are missing
constexpr int32_t kClosed = 2;
constexpr int32_t kCorrupt = 3;  // peer, value
constexpr int32_t kIdle = 4;     // nothing arrived, and nothing is incomplete
constexpr int32_t kInvalid = 5;  // token, or a negative number: see plan.h

// Every block has a status of its own, in a cache line of its own.
constexpr int64_t kStatusBytes = 64;

template <class T>
__aicore__ inline T peek(Address address) {
  return ReadGmByPassDCache<T>(reinterpret_cast<__gm__ T*>(address));
}

// What this core wrote by SetValue is in memory, and what it reads next comes from there.
__aicore__ inline void clean_cache(Address any) {
  DataCacheCleanAndInvalid<int32_t, CacheLine::ENTIRE_DATA_CACHE, DcciDst::CACHELINE_OUT>(
      array<int32_t>(any));
  DataSyncBarrier<MemDsbT::DDR>();
}

// First in every kernel: what an earlier one left in this core's cache may be stale.
__aicore__ inline Layout read_layout(Address begin) {
  clean_cache(begin);
  Layout layout;
  const GlobalTensor<int64_t> fields = array<int64_t>(begin);
  int64_t* values = reinterpret_cast<int64_t*>(&layout);
  for (uint32_t n = 0; n < sizeof(Layout) / sizeof(int64_t); ++n) values[n] = fields.GetValue(n);
  return layout;
}

// All that all cores have done is in memory before any goes on.
__aicore__ inline void meet() {
  PipeBarrier<PIPE_ALL>();
  SyncAll();
}

template <HardEvent event>
__aicore__ inline void order() {
  SetFlag<event>(EVENT_ID2);
  WaitFlag<event>(EVENT_ID2);
}

// A bounded wait: what ends it besides its condition.
class Patience {
 public:
  __aicore__ inline Patience(Address abort, int64_t timeout_cycles)
      : abort_(abort), timeout_cycles_(timeout_cycles), start_(GetSystemCycle()) {}

  __aicore__ inline void restart() { start_ = GetSystemCycle(); }
  __aicore__ inline int32_t check() const {
    if (peek<int32_t>(abort_) != 0) return kClosed;
    return GetSystemCycle() - start_ >= timeout_cycles_ ? kTimeout : kOk;
  }

 private:
  Address abort_;
  int64_t timeout_cycles_;
  int64_t start_;
};

__aicore__ inline void report(Address statuses, int32_t code, int32_t what = 0, int32_t value = 0) {
  const GlobalTensor<int32_t> status = array<int32_t>(statuses + GetBlockIdx() * kStatusBytes);
  status.SetValue(0, code);
  status.SetValue(1, what);
  status.SetValue(2, value);
  clean_cache(statuses);
}

// What block 0 reported, for the others; only after `meet`.
__aicore__ inline int32_t verdict(Address statuses) { return peek<int32_t>(statuses); }

class Flags {
 public:
  __aicore__ inline void init(TPipe& pipe) {
    pipe.InitBuffer(delta_, 32);
    pipe.InitBuffer(guard_, 32);
  }

  // Steps 4 and 5 of async-dispatch-send. Release: the payload must be in memory before the bit.
  // There is nothing to ring: devices look at the word itself.
  __aicore__ inline void announce_message(const MoEView& moe, int64_t i, int64_t j, int64_t slot) {
    PipeBarrier<PIPE_MTE3>();  // payload before bit
    add(moe.word(i, slot), 1 << j);
  }

  // Steps 4 and 5 of async-dispatch-recv. Release: the caller has met the cores that read.
  __aicore__ inline void give_credit(const MoEView& moe, int64_t i, int64_t slot, int32_t bits) {
    add(moe.word(i, slot), -bits);
  }

  // Step 2 of async-combine-send. Release, twice: a receiver that reads both new values (and it
  // may, before the bit, when the bit of a dropped reply was still set) must see the rest.
  __aicore__ inline void publish(Address header, uint64_t epoch, uint64_t sequence) {
    PipeBarrier<PIPE_MTE3>();  // header before guard
    const LocalTensor<int32_t> guard = guard_.Get<int32_t>();
    guard.SetValue(0, static_cast<int32_t>(epoch));
    guard.SetValue(1, static_cast<int32_t>(epoch >> 32));
    guard.SetValue(2, static_cast<int32_t>(sequence));
    guard.SetValue(3, static_cast<int32_t>(sequence >> 32));
    order<HardEvent::S_MTE3>();
    DataCopyPad(array<int32_t>(header), guard, {1, 16, 0, 0, 0});
    PipeBarrier<PIPE_ALL>();  // guard before bit, and before we look at the bit
  }

  // Steps 3 and 4 of async-combine-send. A bit of a dropped reply may still be set: adding to it
  // would carry into the next. Who takes it reads our header after that, so it stands for ours.
  __aicore__ inline void announce_reply(const AttentionView& attention, int64_t slot, int64_t e) {
    const Address word = attention.word(slot);
    if ((peek<int32_t>(word) & 1 << e) == 0) add(word, 1 << e);
  }

  // Steps 1 and 2 of async-combine-recv: whether the reply to this very message is there. Taking
  // the bit first means that the bit of a dropped reply cannot hide the next one.
  __aicore__ inline bool take_reply(const AttentionView& attention, int64_t slot, int64_t e,
                                    uint64_t epoch, uint64_t sequence) {
    if ((peek<int32_t>(attention.word(slot)) & 1 << e) == 0) return false;
    add(attention.word(slot), -(1 << e));
    const Address header = attention.header(slot, e);
    return peek<uint64_t>(header + kHeaderSequence) == sequence &&
           peek<uint64_t>(header + kHeaderEpoch) == epoch;
  }

 private:
  // In memory when it returns.
  __aicore__ inline void add(Address word, int32_t delta) {
    const LocalTensor<int32_t> value = delta_.Get<int32_t>();
    value.SetValue(0, delta);
    order<HardEvent::S_MTE3>();
    SetAtomicAdd<int32_t>();
    DataCopyPad(array<int32_t>(word), value, {1, 4, 0, 0, 0});
    DisableDmaAtomic();
    PipeBarrier<PIPE_ALL>();
  }

  TBuf<TPosition::VECCALC> delta_;
  TBuf<TPosition::VECCALC> guard_;
};

// Step 1 of async-dispatch-send. Acquire: the receiver's reads of the last message are over.
__aicore__ inline bool has_credit(const MoEView& moe, int64_t i, int64_t slot, int32_t bits) {
  return (peek<int32_t>(moe.word(i, slot)) & bits) == 0;
}

// Step 1 of async-dispatch-recv. Acquire: a bit is seen before what it announces is read.
__aicore__ inline int32_t arrived(const MoEView& moe, int64_t i, int64_t slot) {
  return peek<int32_t>(moe.word(i, slot));
}

}  // namespace asap
