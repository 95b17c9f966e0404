// Where each token of one message goes and comes back from: a counting sort by expert, on the
// device that has just routed. The counterpart of Routing in csrc/host/routing.cpp, same names.
#pragma once

#include "rows.h"

namespace asap {

enum Combine : int64_t { kReduced = 0, kPerExpert = 1 };

// Cuts private memory into areas of whole L2 lines.
class Carver {
 public:
  __aicore__ inline explicit Carver(Address bytes) : begin_(bytes) {}

  template <class T>
  __aicore__ inline GlobalTensor<T> next(int64_t count) {
    const GlobalTensor<T> area = array<T>(begin_ + num_bytes);
    num_bytes +=
        (count * static_cast<int64_t>(sizeof(T)) + kFlagBytes - 1) / kFlagBytes * kFlagBytes;
    return area;
  }
  int64_t num_bytes = 0;

 private:
  Address begin_;
};

// Head of a plan, int32 each.
constexpr int64_t kPlanNumTokens = 0;
constexpr int64_t kPlanLayer = 1;
constexpr int64_t kPlanOwing = 2;     // mask of the devices whose reply has not come
constexpr int64_t kPlanIsSound = 3;   // or nothing may be sent
constexpr int64_t kPlanSequence = 4;  // uint64

// The message in flight in one slot, in private memory of the rank.
struct Plan {
  const Layout& l;
  Carver carver;
  GlobalTensor<int32_t> head;
  GlobalTensor<int32_t> row_begin;   // per device, E + 1
  GlobalTensor<int32_t> pair_begin;  // per expert, N + 1
  GlobalTensor<int32_t> tokens;      // per row
  GlobalTensor<int32_t> row_idx;     // per pair
  GlobalTensor<float> weights;       // per pair
  Terms terms;                       // per token: which reply rows make it up

  __aicore__ inline Plan(const Layout& layout, Address bytes)
      : l(layout),
        carver(bytes),
        head(carver.next<int32_t>(16)),
        row_begin(carver.next<int32_t>(l.moe_devices + 1)),
        pair_begin(carver.next<int32_t>(l.num_experts + 1)),
        tokens(carver.next<int32_t>(max_pairs())),
        row_idx(carver.next<int32_t>(max_pairs())),
        weights(carver.next<float>(max_pairs())),
        terms{carver.next<int32_t>(max_tokens() + 1), carver.next<int32_t>(max_pairs()),
              carver.next<float>(max_pairs())} {}

  __aicore__ inline int64_t max_tokens() const { return kNumSlots * l.slot_rows; }
  __aicore__ inline int64_t max_pairs() const { return max_tokens() * l.top_k; }

  __aicore__ inline int64_t first_pair(int64_t e) const {
    return pair_begin.GetValue(first_expert(l, e));
  }
  __aicore__ inline int64_t num_rows(int64_t e) const {
    return row_begin.GetValue(e + 1) - row_begin.GetValue(e);
  }
  __aicore__ inline int64_t num_replies(int64_t e, int64_t combine) const {
    return combine == kReduced ? num_rows(e) : first_pair(e + 1) - first_pair(e);
  }
  __aicore__ inline int64_t reply_offset(int64_t e, int64_t combine) const {
    return combine == kReduced ? row_begin.GetValue(e) : first_pair(e);
  }
};

// What the router chose for S tokens: expert_ids and weights are [S, top_k].
struct Choices {
  int64_t num_tokens;
  GlobalTensor<int32_t> expert_ids;
  GlobalTensor<float> weights;
};

class Planner {
 public:
  __aicore__ inline Planner(const Layout& layout, const Plan& plan, int64_t combine)
      : l_(layout), plan_(plan), combine_(combine) {}

  __aicore__ inline void init(TPipe& pipe) {
    pipe.InitBuffer(tables_, static_cast<uint32_t>((3 * l_.num_experts + 2 * l_.moe_devices) * 4));
    const LocalTensor<int32_t> table = tables_.Get<int32_t>();
    device_of_ = table;
    expert_seen_ = table[static_cast<uint32_t>(l_.num_experts)];
    next_pair_ = table[static_cast<uint32_t>(2 * l_.num_experts)];
    device_seen_ = table[static_cast<uint32_t>(3 * l_.num_experts)];
    next_row_ = device_seen_[static_cast<uint32_t>(l_.moe_devices)];
    for (int64_t e = 0; e < l_.moe_devices; ++e) {
      for (int64_t x = first_expert(l_, e); x < first_expert(l_, e + 1); ++x) {
        device_of_.SetValue(x, static_cast<int32_t>(e));
      }
    }
  }

  // The first token with an expert out of range or chosen twice, or -1.
  __aicore__ inline int64_t count(const Choices& choices) {
    forget();
    for (int64_t x = 0; x <= l_.num_experts; ++x) plan_.pair_begin.SetValue(x, 0);
    for (int64_t e = 0; e <= l_.moe_devices; ++e) plan_.row_begin.SetValue(e, 0);
    for (int64_t token = 0; token < choices.num_tokens; ++token) {
      for (int64_t k = 0; k < l_.top_k; ++k) {
        const int32_t x = choices.expert_ids.GetValue(token * l_.top_k + k);
        if (x < 0 || x >= l_.num_experts || expert_seen_.GetValue(x) == token) return token;
        expert_seen_.SetValue(x, static_cast<int32_t>(token));
        increment(plan_.pair_begin, x + 1);
        const int32_t e = device_of_.GetValue(x);
        if (device_seen_.GetValue(e) == token) continue;
        device_seen_.SetValue(e, static_cast<int32_t>(token));
        increment(plan_.row_begin, e + 1);
      }
    }
    accumulate(plan_.pair_begin, l_.num_experts);
    accumulate(plan_.row_begin, l_.moe_devices);
    return -1;
  }

  __aicore__ inline void fill(const Choices& choices) {
    forget();
    for (int64_t e = 0; e < l_.moe_devices; ++e) next_row_.SetValue(e, plan_.row_begin.GetValue(e));
    for (int64_t x = 0; x < l_.num_experts; ++x)
      next_pair_.SetValue(x, plan_.pair_begin.GetValue(x));
    num_terms_ = 0;
    plan_.terms.begin.SetValue(0, 0);
    for (int64_t token = 0; token < choices.num_tokens; ++token) {
      for (int64_t k = 0; k < l_.top_k; ++k) {
        const int64_t choice = token * l_.top_k + k;
        place(token, choices.expert_ids.GetValue(choice), choices.weights.GetValue(choice));
      }
      plan_.terms.begin.SetValue(token + 1, num_terms_);
    }
  }

 private:
  __aicore__ inline void forget() {
    for (int64_t x = 0; x < l_.num_experts; ++x) expert_seen_.SetValue(x, -1);
    for (int64_t e = 0; e < l_.moe_devices; ++e) device_seen_.SetValue(e, -1);
  }

  __aicore__ inline void place(int64_t token, int32_t x, float weight) {
    const int32_t e = device_of_.GetValue(x);
    if (device_seen_.GetValue(e) != token) {
      device_seen_.SetValue(e, static_cast<int32_t>(token));
      const int32_t row = next_row_.GetValue(e);
      if (combine_ == kReduced) add_term(row, 1.0f);
      plan_.tokens.SetValue(row, static_cast<int32_t>(token));
      next_row_.SetValue(e, row + 1);
    }
    const int32_t pair = next_pair_.GetValue(x);
    next_pair_.SetValue(x, pair + 1);
    plan_.row_idx.SetValue(pair, next_row_.GetValue(e) - 1 - plan_.row_begin.GetValue(e));
    plan_.weights.SetValue(pair, weight);
    if (combine_ == kPerExpert) add_term(pair, weight);
  }

  __aicore__ inline void add_term(int32_t row, float weight) {
    plan_.terms.rows.SetValue(num_terms_, row);
    plan_.terms.weights.SetValue(num_terms_, weight);
    ++num_terms_;
  }

  __aicore__ inline static void increment(const GlobalTensor<int32_t>& counts, int64_t n) {
    counts.SetValue(n, counts.GetValue(n) + 1);
  }
  __aicore__ inline static void accumulate(const GlobalTensor<int32_t>& counts, int64_t last) {
    for (int64_t n = 0; n < last; ++n) {
      counts.SetValue(n + 1, counts.GetValue(n) + counts.GetValue(n + 1));
    }
  }

  const Layout& l_;
  const Plan& plan_;
  const int64_t combine_;
  TBuf<TPosition::VECCALC> tables_;
  LocalTensor<int32_t> device_of_, expert_seen_, next_pair_, device_seen_, next_row_;
  int32_t num_terms_ = 0;
};

// Instead of a token, when a call is invalid as a whole.
constexpr int32_t kTooManyTokens = -1;
constexpr int32_t kTooManyPeers = -2;

struct PlanCall {
  Address layout, plan, expert_ids, weights, status;
  int64_t num_tokens, layer, sequence, combine;
};

// One block. Checks what the router chose; after kInvalid dispatch_send sends nothing.
__aicore__ inline void make_plan(const PlanCall& call) {
  TPipe pipe;
  const Layout l = read_layout(call.layout);
  const Plan plan(l, call.plan);
  const Choices choices{call.num_tokens, array<int32_t>(call.expert_ids),
                        array<float>(call.weights)};
  plan.head.SetValue(kPlanIsSound, 0);
  if (l.tp > kMaxBits || l.moe_devices > kMaxBits) {
    return report(call.status, kInvalid, kTooManyPeers, kMaxBits);
  }
  if (call.num_tokens < 0 || call.num_tokens > plan.max_tokens()) {
    return report(call.status, kInvalid, kTooManyTokens, static_cast<int32_t>(call.num_tokens));
  }
  Planner planner(l, plan, call.combine);
  planner.init(pipe);
  const int64_t wrong = planner.count(choices);
  if (wrong >= 0) return report(call.status, kInvalid, static_cast<int32_t>(wrong));
  planner.fill(choices);
  int32_t owing = 0;
  for (int64_t e = 0; e < l.moe_devices; ++e) {
    if (plan.num_replies(e, call.combine) > 0) owing |= 1 << e;
  }
  plan.head.SetValue(kPlanIsSound, 1);
  plan.head.SetValue(kPlanNumTokens, static_cast<int32_t>(call.num_tokens));
  plan.head.SetValue(kPlanLayer, static_cast<int32_t>(call.layer));
  plan.head.SetValue(kPlanOwing, owing);
  plan.head.SetValue(kPlanSequence, static_cast<int32_t>(call.sequence));
  plan.head.SetValue(kPlanSequence + 1, static_cast<int32_t>(call.sequence >> 32));
  report(call.status, kOk);
}

__aicore__ inline uint64_t sequence_of(const Plan& plan) {
  return static_cast<uint32_t>(plan.head.GetValue(kPlanSequence)) |
         static_cast<uint64_t>(plan.head.GetValue(kPlanSequence + 1)) << 32;
}

}  // namespace asap
