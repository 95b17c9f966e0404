// Operators of aten that read or write where an index says.
#include <algorithm>

#include "operators.hpp"

using namespace fake;

namespace {

constexpr std::int64_t kReplace = 0, kAdd = 1;  // what scatter does with what was there

std::int64_t within(std::int64_t index, std::int64_t size) {
  const std::int64_t place = index < 0 ? index + size : index;
  if (place < 0 || place >= size) throw std::out_of_range("an index outside its axis");
  return place;
}

// Places in a packed tensor of `dims` where the elements of an index lead: along one axis each
// says, along the others it has its own place.
Dims led(Tensor index, const Dims& dims, std::size_t axis) {
  require(index->dims.size() == dims.size(), "an index with other axes");
  Dims strides = packed(dims);
  const std::int64_t step = strides[axis];
  strides[axis] = 0;
  Dims places = read_ints(index);
  auto next = places.begin();
  each(index->dims, strides, [&](std::int64_t place) {
    *next = place + within(*next, dims[axis]) * step;
    ++next;
  });
  return places;
}

// Places of whole slices along one axis, in order: those of a result whose axis is as long as
// `chosen`.
Dims slices(const Dims& dims, std::size_t axis, const Dims& chosen) {
  const Lines lines(dims, axis);
  Dims places;
  for (std::int64_t outer = 0; outer < lines.outer; ++outer) {
    for (const std::int64_t index : chosen) {
      const std::int64_t first = (outer * lines.length + within(index, lines.length)) * lines.step;
      for (std::int64_t n = 0; n < lines.step; ++n) places.push_back(first + n);
    }
  }
  return places;
}

// The dimensions that both have when they broadcast.
Dims broadcast(Dims a, Dims b) {
  if (a.size() < b.size()) std::swap(a, b);
  for (std::size_t n = 1; n <= b.size(); ++n) {
    a[a.size() - n] = std::max(a[a.size() - n], b[b.size() - n]);
  }
  return a;
}

// What `[a, :, b]` chooses: places in a packed tensor, and the dimensions of the result.
struct Chosen {
  Dims dims, places;

  // An index without elements stands for a whole axis.
  Chosen(const Dims& of, const std::vector<Tensor>& indices) {
    std::vector<std::size_t> said;
    Dims common;
    for (std::size_t axis = 0; axis < indices.size(); ++axis) {
      if (indices[axis]->count() == 0) continue;
      said.push_back(axis);
      common = broadcast(common, indices[axis]->dims);
    }
    require(!said.empty(), "no index");
    const Dims strides = packed(of);
    Dims offsets(static_cast<std::size_t>(count(common)), 0);
    for (const std::size_t axis : said) {
      const Dims index = read<std::int64_t>(indices[axis], common);
      for (std::size_t n = 0; n < offsets.size(); ++n) {
        offsets[n] += within(index[n], of[axis]) * strides[axis];
      }
    }
    const bool is_together = said.back() - said.front() + 1 == said.size();
    const std::size_t num_before = is_together ? said.front() : 0;
    Dims outer_dims, outer_strides, inner_dims, inner_strides;
    for (std::size_t axis = 0; axis < of.size(); ++axis) {
      if (std::ranges::find(said, axis) != said.end()) continue;
      (axis < num_before ? outer_dims : inner_dims).push_back(of[axis]);
      (axis < num_before ? outer_strides : inner_strides).push_back(strides[axis]);
    }
    for (const Dims& part : {outer_dims, common, inner_dims}) {
      dims.insert(dims.end(), part.begin(), part.end());
    }
    each(outer_dims, outer_strides, [&](std::int64_t outer) {
      for (const std::int64_t offset : offsets) {
        each(inner_dims, inner_strides,
             [&](std::int64_t inner) { places.push_back(outer + offset + inner); });
      }
    });
  }
};

void take(Tensor self, const Dims& places, Tensor out) {
  const Numbers numbers = read(self);
  Numbers taken(places.size());
  for (std::size_t n = 0; n < places.size(); ++n) {
    taken[n] = numbers[static_cast<std::size_t>(places[n])];
  }
  write(out, taken);
}

// Puts numbers, times `scale`, into a copy of `self`: in the place of others or on top of them.
void put(Tensor self, const Dims& places, const Numbers& numbers, std::int64_t mode, Tensor out) {
  require(mode == kReplace || mode == kAdd, "a way of scattering that the fake has not");
  require(places.size() == numbers.size(), "not as many numbers as places");
  Numbers all = read(self);
  for (std::size_t n = 0; n < places.size(); ++n) {
    double& there = all[static_cast<std::size_t>(places[n])];
    there = mode == kAdd ? there + numbers[n] : numbers[n];
  }
  write(out, all);
}

void scatter(Tensor self, std::int64_t axis, Tensor index, Tensor source, std::int64_t mode,
             Tensor out) {
  put(self, led(index, self->dims, self->axis(axis)), load(source, index->dims, source->strides),
      mode, out);
}

void scatter(Tensor self, std::int64_t axis, Tensor index, double value, std::int64_t mode,
             Tensor out) {
  put(self, led(index, self->dims, self->axis(axis)),
      Numbers(static_cast<std::size_t>(index->count()), value), mode, out);
}

// The numbers 0, 1, ..., each as often as it is said to be.
Dims repeated(const Dims& times) {
  Dims chosen;
  for (std::size_t n = 0; n < times.size(); ++n) {
    chosen.insert(chosen.end(), static_cast<std::size_t>(times[n]), static_cast<std::int64_t>(n));
  }
  return chosen;
}

// Slices along one axis of a tensor that is seen as if it had these dimensions.
void repeat(Tensor self, const Dims& dims, std::size_t axis, Dims times, Tensor out) {
  const auto length = static_cast<std::size_t>(dims[axis]);
  if (times.size() == 1) times.assign(length, times[0]);
  require(times.size() == length, "not as many repeats as slices");
  take(self, slices(dims, axis, repeated(times)), out);
}

}  // namespace

extern "C" {

ASAP_OPERATOR(Gather, Tensor self, std::int64_t axis, Tensor index, Tensor out) {
  return plan(bytes, e, [=] { take(self, led(index, self->dims, self->axis(axis)), out); });
}
ASAP_OPERATOR(Scatter, Tensor self, std::int64_t axis, Tensor index, Tensor source,
              std::int64_t mode, Tensor out) {
  return plan(bytes, e, [=] { scatter(self, axis, index, source, mode, out); });
}
ASAP_OPERATOR(InplaceScatter, Tensor self, std::int64_t axis, Tensor index, Tensor source,
              std::int64_t mode) {
  return plan(bytes, e, [=] { scatter(self, axis, index, source, mode, self); });
}
ASAP_OPERATOR(ScatterValue, Tensor self, std::int64_t axis, Tensor index, Scalar value,
              std::int64_t mode, Tensor out) {
  const double number = value->value;
  return plan(bytes, e, [=] { scatter(self, axis, index, number, mode, out); });
}
ASAP_OPERATOR(InplaceScatterValue, Tensor self, std::int64_t axis, Tensor index, Scalar value,
              std::int64_t mode) {
  const double number = value->value;
  return plan(bytes, e, [=] { scatter(self, axis, index, number, mode, self); });
}
ASAP_OPERATOR(ScatterAdd, Tensor self, std::int64_t axis, Tensor index, Tensor source, Tensor out) {
  return plan(bytes, e, [=] { scatter(self, axis, index, source, kAdd, out); });
}

ASAP_OPERATOR(IndexSelect, Tensor self, std::int64_t axis, Tensor index, Tensor out) {
  return plan(bytes, e,
              [=] { take(self, slices(self->dims, self->axis(axis), read_ints(index)), out); });
}
ASAP_OPERATOR(Embedding, Tensor weight, Tensor index, Tensor out) {
  return plan(bytes, e, [=] { take(weight, slices(weight->dims, 0, read_ints(index)), out); });
}
ASAP_OPERATOR(InplaceIndexCopy, Tensor self, std::int64_t axis, Tensor index, Tensor source) {
  return plan(bytes, e, [=] {
    put(self, slices(self->dims, self->axis(axis), read_ints(index)), read(source), kReplace, self);
  });
}
ASAP_OPERATOR(IndexAdd, Tensor self, std::int64_t axis, Tensor index, Tensor source, Scalar alpha,
              Tensor out) {
  const double scale = alpha->value;
  return plan(bytes, e, [=] {
    Numbers numbers = read(source);
    for (double& number : numbers) number *= scale;
    put(self, slices(self->dims, self->axis(axis), read_ints(index)), numbers, kAdd, out);
  });
}
ASAP_OPERATOR(Index, Tensor self, List indices, Tensor out) {
  return plan(bytes, e, [=] {
    if (out->count() != 0) take(self, Chosen(self->dims, indices->tensors).places, out);
  });
}
ASAP_OPERATOR(IndexPutImpl, Tensor self, List indices, Tensor values, bool accumulate, bool) {
  return plan(bytes, e, [=] {
    const Chosen chosen(self->dims, indices->tensors);
    put(self, chosen.places, read(values, chosen.dims), accumulate ? kAdd : kReplace, self);
  });
}

ASAP_OPERATOR(RepeatInterleaveInt, Tensor self, std::int64_t times, std::int64_t, Tensor out) {
  return plan(bytes, e, [=] { repeat(self, {self->count()}, 0, {times}, out); });
}
ASAP_OPERATOR(RepeatInterleave, Tensor self, Tensor times, std::int64_t, Tensor out) {
  return plan(bytes, e, [=] { repeat(self, {self->count()}, 0, read_ints(times), out); });
}
ASAP_OPERATOR(RepeatInterleaveIntWithDim, Tensor self, std::int64_t times, std::int64_t axis,
              std::int64_t, Tensor out) {
  return plan(bytes, e, [=] { repeat(self, self->dims, self->axis(axis), {times}, out); });
}
ASAP_OPERATOR(RepeatInterleaveWithDim, Tensor self, Tensor times, std::int64_t axis, std::int64_t,
              Tensor out) {
  return plan(bytes, e, [=] { repeat(self, self->dims, self->axis(axis), read_ints(times), out); });
}
ASAP_OPERATOR(RepeatInterleaveTensor, Tensor times, std::int64_t, Tensor out) {
  return plan(bytes, e, [=] { write(out, repeated(read_ints(times))); });
}
}
