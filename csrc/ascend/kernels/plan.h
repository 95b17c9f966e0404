// Where each token of one message goes and comes back from: a counting sort by place, on the
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
  GlobalTensor<int32_t> pair_begin;  // per place, P + 1
  GlobalTensor<int32_t> places;      // [S, top_k]
  GlobalTensor<int32_t> tokens;      // per row
  GlobalTensor<int32_t> row_idx;     // per pair
  GlobalTensor<float> weights;       // per pair
  Terms terms;                       // per token: which reply rows make it up

  __aicore__ inline Plan(const Layout& layout, Address bytes)
      : l(layout),
        carver(bytes),
        head(carver.next<int32_t>(16)),
        row_begin(carver.next<int32_t>(l.moe_devices + 1)),
        pair_begin(carver.next<int32_t>(l.num_places + 1)),
        places(carver.next<int32_t>(max_pairs())),
        tokens(carver.next<int32_t>(max_pairs())),
        row_idx(carver.next<int32_t>(max_pairs())),
        weights(carver.next<float>(max_pairs())),
        terms{carver.next<int32_t>(max_tokens() + 1), carver.next<int32_t>(max_pairs()),
              carver.next<float>(max_pairs())} {}

  __aicore__ inline int64_t max_tokens() const { return kNumSlots * l.slot_rows; }
  __aicore__ inline int64_t max_pairs() const { return max_tokens() * l.top_k; }

  __aicore__ inline int64_t first_pair(int64_t e) const {
    return pair_begin.GetValue(first_place(l, e));
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

// Which places each expert is in, as the host has written it: see csrc/include/asap/placement.hpp.
struct Placement {
  GlobalTensor<int32_t> begin;   // per expert, N + 1, into `places`
  GlobalTensor<int32_t> places;  // by expert, ascending

  __aicore__ inline Placement(const Layout& l, Address bytes)
      : begin(array<int32_t>(bytes)), places(array<int32_t>(bytes + (l.num_experts + 1) * 4)) {}

  __aicore__ inline int64_t num_places(int32_t x) const {
    return begin.GetValue(x + 1) - begin.GetValue(x);
  }
  __aicore__ inline int32_t place(int32_t x, int64_t n) const {
    return places.GetValue(begin.GetValue(x) + n);
  }
};

class Planner {
 public:
  __aicore__ inline Planner(const Plan& plan, const Placement& placement, int64_t combine)
      : l_(plan.l), plan_(plan), placement_(placement), combine_(combine) {}

  __aicore__ inline void init(TPipe& pipe) {
    pipe.InitBuffer(tables_, static_cast<uint32_t>(
                                 (l_.num_experts + 2 * l_.num_places + 3 * l_.moe_devices) * 4));
    expert_seen_ = tables_.Get<int32_t>();
    device_of_ = expert_seen_[static_cast<uint32_t>(l_.num_experts)];
    next_pair_ = device_of_[static_cast<uint32_t>(l_.num_places)];
    device_seen_ = next_pair_[static_cast<uint32_t>(l_.num_places)];
    next_row_ = device_seen_[static_cast<uint32_t>(l_.moe_devices)];
    load_ = next_row_[static_cast<uint32_t>(l_.moe_devices)];
    for (int64_t e = 0; e < l_.moe_devices; ++e) {
      for (int64_t p = first_place(l_, e); p < first_place(l_, e + 1); ++p) {
        device_of_.SetValue(p, static_cast<int32_t>(e));
      }
    }
  }

  // The first token with an expert out of range or chosen twice, or -1.
  __aicore__ inline int64_t count(const Choices& choices) {
    forget();
    for (int64_t p = 0; p <= l_.num_places; ++p) plan_.pair_begin.SetValue(p, 0);
    for (int64_t e = 0; e <= l_.moe_devices; ++e) plan_.row_begin.SetValue(e, 0);
    for (int64_t e = 0; e < l_.moe_devices; ++e) load_.SetValue(e, 0);
    for (int64_t token = 0; token < choices.num_tokens; ++token) {
      if (!is_sound(choices, token)) return token;
      take_all(choices, token, false);
      if (l_.num_places > l_.num_experts) take_all(choices, token, true);
    }
    accumulate(plan_.pair_begin, l_.num_places);
    accumulate(plan_.row_begin, l_.moe_devices);
    return -1;
  }

  __aicore__ inline void fill(const Choices& choices) {
    forget();
    for (int64_t e = 0; e < l_.moe_devices; ++e) next_row_.SetValue(e, plan_.row_begin.GetValue(e));
    for (int64_t p = 0; p < l_.num_places; ++p) {
      next_pair_.SetValue(p, plan_.pair_begin.GetValue(p));
    }
    num_terms_ = 0;
    plan_.terms.begin.SetValue(0, 0);
    for (int64_t token = 0; token < choices.num_tokens; ++token) {
      for (int64_t k = 0; k < l_.top_k; ++k) {
        const int64_t choice = token * l_.top_k + k;
        put(token, plan_.places.GetValue(choice), choices.weights.GetValue(choice));
      }
      plan_.terms.begin.SetValue(token + 1, num_terms_);
    }
  }

 private:
  __aicore__ inline void forget() {
    for (int64_t x = 0; x < l_.num_experts; ++x) expert_seen_.SetValue(x, -1);
    for (int64_t e = 0; e < l_.moe_devices; ++e) device_seen_.SetValue(e, -1);
  }

  __aicore__ inline bool is_sound(const Choices& choices, int64_t token) {
    for (int64_t k = 0; k < l_.top_k; ++k) {
      const int32_t x = choices.expert_ids.GetValue(token * l_.top_k + k);
      if (x < 0 || x >= l_.num_experts || expert_seen_.GetValue(x) == token) return false;
      expert_seen_.SetValue(x, static_cast<int32_t>(token));
    }
    return true;
  }

  // Those of the token's experts that are redundant, or those that are not.
  __aicore__ inline void take_all(const Choices& choices, int64_t token, bool are_redundant) {
    for (int64_t k = 0; k < l_.top_k; ++k) {
      const int64_t choice = token * l_.top_k + k;
      const int32_t x = choices.expert_ids.GetValue(choice);
      if ((placement_.num_places(x) > 1) != are_redundant) continue;
      const int32_t p = best_place(token, x);
      plan_.places.SetValue(choice, p);
      take(token, p);
    }
  }

  __aicore__ inline int32_t best_place(int64_t token, int32_t x) const {
    int32_t best = placement_.place(x, 0);
    for (int64_t n = 1; n < placement_.num_places(x); ++n) {
      const int32_t p = placement_.place(x, n);
      if (is_better(token, device_of_.GetValue(p), device_of_.GetValue(best))) best = p;
    }
    return best;
  }

  __aicore__ inline bool is_better(int64_t token, int32_t e, int32_t than) const {
    const bool is_seen = device_seen_.GetValue(e) == token;
    if (is_seen != (device_seen_.GetValue(than) == token)) return is_seen;
    return load_.GetValue(e) < load_.GetValue(than);
  }

  __aicore__ inline void take(int64_t token, int32_t p) {
    increment(plan_.pair_begin, p + 1);
    const int32_t e = device_of_.GetValue(p);
    load_.SetValue(e, load_.GetValue(e) + 1);
    if (device_seen_.GetValue(e) == token) return;
    device_seen_.SetValue(e, static_cast<int32_t>(token));
    increment(plan_.row_begin, e + 1);
  }

  __aicore__ inline void put(int64_t token, int32_t p, float weight) {
    const int32_t e = device_of_.GetValue(p);
    if (device_seen_.GetValue(e) != token) {
      device_seen_.SetValue(e, static_cast<int32_t>(token));
      const int32_t row = next_row_.GetValue(e);
      if (combine_ == kReduced) add_term(row, 1.0f);
      plan_.tokens.SetValue(row, static_cast<int32_t>(token));
      next_row_.SetValue(e, row + 1);
    }
    const int32_t pair = next_pair_.GetValue(p);
    next_pair_.SetValue(p, pair + 1);
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
  const Placement& placement_;
  const int64_t combine_;
  TBuf<TPosition::VECCALC> tables_;
  LocalTensor<int32_t> expert_seen_, device_of_, next_pair_, device_seen_, next_row_, load_;
  int32_t num_terms_ = 0;
};

// Instead of a token, when a call is invalid as a whole.
constexpr int32_t kTooManyTokens = -1;
constexpr int32_t kTooManyPeers = -2;

struct PlanCall {
  Address layout, placement, plan, expert_ids, weights, status;
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
  const Placement placement(l, call.placement);
  Planner planner(plan, placement, call.combine);
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
