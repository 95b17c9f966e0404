// Operators of aten that run along axes: sums and their like, softmax, running sums, orders.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "operators.hpp"

using namespace fake;

namespace {

// Combines all numbers along `axes`, or along every axis if there is none, into packed results.
template <typename Combine>
Numbers reduce(Tensor self, const Dims& axes, double start, Combine combine) {
  std::vector<bool> is_gone(self->dims.size(), axes.empty());
  for (const std::int64_t axis : axes) is_gone[self->axis(axis)] = true;
  Dims kept = self->dims;
  for (std::size_t axis = 0; axis < kept.size(); ++axis) {
    if (is_gone[axis]) kept[axis] = 1;
  }
  Dims strides = packed(kept);
  for (std::size_t axis = 0; axis < kept.size(); ++axis) {
    if (is_gone[axis]) strides[axis] = 0;
  }
  Numbers results(static_cast<std::size_t>(count(kept)), start);
  const Numbers numbers = read(self);
  auto next = numbers.begin();
  each(self->dims, strides, [&](std::int64_t place) {
    double& result = results[static_cast<std::size_t>(place)];
    result = combine(result, *next++);
  });
  return results;
}

double larger(double a, double b) { return std::max(a, b); }
double smaller(double a, double b) { return std::min(a, b); }

template <typename Combine>
int reduced(std::uint64_t* bytes, Executor** e, Tensor self, Dims axes, double start,
            Combine combine, Tensor out) {
  return plan(bytes, e, [=] { write(out, reduce(self, axes, start, combine)); });
}

void mean(Tensor self, const Dims& axes, Tensor out) {
  Numbers sums = reduce(self, axes, 0, std::plus());
  const double share = static_cast<double>(out->count()) / static_cast<double>(self->count());
  for (double& sum : sums) sum *= share;
  write(out, sums);
}

void softmax(Tensor self, std::int64_t axis, Tensor out) {
  Numbers numbers = read(self);
  const Lines lines(self, axis);
  lines.each([&](std::int64_t first, std::int64_t) {
    const auto at = [&](std::int64_t n) -> double& {
      return numbers[static_cast<std::size_t>(first + n * lines.step)];
    };
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::int64_t n = 0; n < lines.length; ++n) largest = std::max(largest, at(n));
    for (std::int64_t n = 0; n < lines.length; ++n) sum += at(n) = std::exp(at(n) - largest);
    for (std::int64_t n = 0; n < lines.length; ++n) at(n) /= sum;
  });
  write(out, numbers);
}

void running_sum(Tensor self, std::int64_t axis, Tensor out) {
  Numbers numbers = read(self);
  const Lines lines(self, axis);
  lines.each([&](std::int64_t first, std::int64_t) {
    for (std::int64_t n = 1; n < lines.length; ++n) {
      const std::int64_t place = first + n * lines.step;
      numbers[static_cast<std::size_t>(place)] +=
          numbers[static_cast<std::size_t>(place - lines.step)];
    }
  });
  write(out, numbers);
}

// The first `num` of each line in order of size, equal ones as they stand; and where they stood.
void order(Tensor self, std::int64_t axis, std::int64_t num, bool descending, Tensor values,
           Tensor places) {
  const Numbers numbers = read(self);
  const Lines lines(self, axis);
  Numbers best(static_cast<std::size_t>(lines.outer * lines.step * num));
  Dims stood(best.size()), ranks(static_cast<std::size_t>(lines.length));
  lines.each([&](std::int64_t first, std::int64_t line) {
    const auto at = [&](std::int64_t n) {
      return numbers[static_cast<std::size_t>(first + n * lines.step)];
    };
    std::iota(ranks.begin(), ranks.end(), 0);
    std::ranges::stable_sort(ranks, [&](std::int64_t a, std::int64_t b) {
      return descending ? at(a) > at(b) : at(a) < at(b);
    });
    for (std::int64_t n = 0; n < num; ++n) {
      const auto to =
          static_cast<std::size_t>((line / lines.step * num + n) * lines.step + line % lines.step);
      stood[to] = ranks[static_cast<std::size_t>(n)];
      best[to] = at(stood[to]);
    }
  });
  if (values != nullptr) write(values, best);
  write(places, stood);
}

}  // namespace

extern "C" {

ASAP_OPERATOR(ReduceSum, Tensor self, Ints axes, bool, int, Tensor out) {
  return reduced(bytes, e, self, axes->values, 0, std::plus(), out);
}
ASAP_OPERATOR(Mean, Tensor self, Ints axes, bool, int, Tensor out) {
  return plan(bytes, e, [=] { mean(self, axes->values, out); });
}
ASAP_OPERATOR(All, Tensor self, Ints axes, bool, Tensor out) {
  return reduced(bytes, e, self, axes->values, 1, std::logical_and(), out);
}
ASAP_OPERATOR(Any, Tensor self, Ints axes, bool, Tensor out) {
  return reduced(bytes, e, self, axes->values, 0, std::logical_or(), out);
}
ASAP_OPERATOR(Max, Tensor self, Tensor out) {
  return reduced(bytes, e, self, {}, -HUGE_VAL, larger, out);
}
ASAP_OPERATOR(Amax, Tensor self, Ints axes, bool, Tensor out) {
  return reduced(bytes, e, self, axes->values, -HUGE_VAL, larger, out);
}
ASAP_OPERATOR(Min, Tensor self, Tensor out) {
  return reduced(bytes, e, self, {}, HUGE_VAL, smaller, out);
}

ASAP_OPERATOR(MaxDim, Tensor self, std::int64_t axis, bool, Tensor out, Tensor places) {
  return plan(bytes, e, [=] { order(self, axis, 1, true, out, places); });
}
ASAP_OPERATOR(MinDim, Tensor self, std::int64_t axis, bool, Tensor out, Tensor places) {
  return plan(bytes, e, [=] { order(self, axis, 1, false, out, places); });
}
ASAP_OPERATOR(ArgMax, Tensor self, std::int64_t axis, bool, Tensor places) {
  return plan(bytes, e, [=] { order(self, axis, 1, true, nullptr, places); });
}
ASAP_OPERATOR(ArgMin, Tensor self, std::int64_t axis, bool, Tensor places) {
  return plan(bytes, e, [=] { order(self, axis, 1, false, nullptr, places); });
}
ASAP_OPERATOR(Topk, Tensor self, std::int64_t k, std::int64_t axis, bool largest, bool,
              Tensor values, Tensor places) {
  return plan(bytes, e, [=] { order(self, axis, k, largest, values, places); });
}
ASAP_OPERATOR(Sort, Tensor self, bool, std::int64_t axis, bool descending, Tensor values,
              Tensor places) {
  return plan(bytes, e,
              [=] { order(self, axis, Lines(self, axis).length, descending, values, places); });
}

ASAP_OPERATOR(Softmax, Tensor self, std::int64_t axis, Tensor out) {
  return plan(bytes, e, [=] { softmax(self, axis, out); });
}
ASAP_OPERATOR(Cumsum, Tensor self, std::int64_t axis, int, Tensor out) {
  return plan(bytes, e, [=] { running_sum(self, axis, out); });
}
}
