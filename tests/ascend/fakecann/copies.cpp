// Operators of aten that move elements or make them: copies, casts, joins, constants.
#include "operators.hpp"

using namespace fake;

namespace {

template <typename Bits>
void copy_bits(Tensor to, Tensor from) {
  std::vector<Bits> bits(static_cast<std::size_t>(to->count()));
  auto next = bits.begin();
  const auto* source = reinterpret_cast<const Bits*>(from->data);
  each(from->dims, from->strides, [&](std::int64_t place) { *next++ = source[place]; });
  next = bits.begin();
  auto* target = reinterpret_cast<Bits*>(to->data);
  each(to->dims, to->strides, [&](std::int64_t place) { target[place] = *next++; });
}

void copy(Tensor to, Tensor from) {
  if (to->type != from->type) return write(to, read(from, to->dims));
  if (to->dims != from->dims) {  // of the same elements, or broadcast
    return write(to, to->count() == from->count() ? read(from) : read(from, to->dims));
  }
  with_type(to->type, [&]<typename Element>(Element) {
    if constexpr (sizeof(Element) == 1) {
      copy_bits<std::uint8_t>(to, from);
    } else if constexpr (sizeof(Element) == 2) {
      copy_bits<std::uint16_t>(to, from);
    } else {
      copy_bits<Element>(to, from);
    }
  });
}

void fill(Tensor out, double value) {
  write(out, Numbers(static_cast<std::size_t>(out->count()), value));
}

// Tensors behind each other along one axis, where each is as long as its share of all.
void join(const std::vector<Tensor>& tensors, const Lines& lines, Tensor out) {
  Numbers joined(static_cast<std::size_t>(out->count()));
  std::int64_t first = 0;
  for (const Tensor tensor : tensors) {
    const Numbers numbers = read(tensor);
    const std::int64_t width = tensor->count() / lines.outer;  // the axis, and all behind it
    require(width * lines.outer == tensor->count() && first + width <= lines.length * lines.step,
            "tensors that do not fit together");
    for (std::int64_t n = 0; n < tensor->count(); ++n) {
      const std::int64_t place = n / width * lines.length * lines.step + first + n % width;
      joined[static_cast<std::size_t>(place)] = numbers[static_cast<std::size_t>(n)];
    }
    first += width;
  }
  require(first == lines.length * lines.step, "tensors that do not fill the result");
  write(out, joined);
}

// The part of each matrix on and above a diagonal, or on and below it.
void triangle(Tensor self, std::int64_t diagonal, bool is_upper, Tensor out) {
  Numbers numbers = read(self);
  const std::int64_t rows = self->dim(-2), columns = self->dim(-1);
  for (std::int64_t n = 0; n < self->count(); ++n) {
    const std::int64_t above = n % columns - n / columns % rows - diagonal;
    if (is_upper ? above < 0 : above > 0) numbers[static_cast<std::size_t>(n)] = 0;
  }
  write(out, numbers);
}

// `widths` numbers around each axis, before and behind it, the last axis first.
void pad(Tensor self, const Dims& widths, double value, Tensor out) {
  fill(out, value);
  aclTensor inside{self->dims, out->strides, out->type, out->data};
  std::int64_t first = 0;
  for (std::size_t n = 0; 2 * n < widths.size(); ++n) {
    require(widths[2 * n] >= 0 && widths[2 * n + 1] >= 0, "padding that cuts");
    first += widths[2 * n] * out->strides.rbegin()[static_cast<std::ptrdiff_t>(n)];
  }
  with_type(out->type, [&]<typename Element>(Element) {
    inside.data += first * static_cast<std::int64_t>(sizeof(Element));
  });
  write(&inside, read(self));
}

}  // namespace

extern "C" {

ASAP_OPERATOR(InplaceCopy, Tensor to, Tensor from) {
  return plan(bytes, e, [=] { copy(to, from); });
}
ASAP_OPERATOR(Cast, Tensor from, int, Tensor to) {
  return plan(bytes, e, [=] { copy(to, from); });
}

ASAP_OPERATOR(Cat, List list, std::int64_t axis, Tensor out) {
  return plan(bytes, e, [=] { join(list->tensors, Lines(out, axis), out); });
}
ASAP_OPERATOR(Stack, List list, std::int64_t axis, Tensor out) {
  return plan(bytes, e, [=] { join(list->tensors, Lines(out, axis), out); });
}

ASAP_OPERATOR(Triu, Tensor self, std::int64_t diagonal, Tensor out) {
  return plan(bytes, e, [=] { triangle(self, diagonal, true, out); });
}
ASAP_OPERATOR(Tril, Tensor self, std::int64_t diagonal, Tensor out) {
  return plan(bytes, e, [=] { triangle(self, diagonal, false, out); });
}
ASAP_OPERATOR(InplaceTriu, Tensor self, std::int64_t diagonal) {
  return plan(bytes, e, [=] { triangle(self, diagonal, true, self); });
}
ASAP_OPERATOR(InplaceTril, Tensor self, std::int64_t diagonal) {
  return plan(bytes, e, [=] { triangle(self, diagonal, false, self); });
}

ASAP_OPERATOR(ConstantPadNd, Tensor self, Ints widths, Scalar value, Tensor out) {
  const double number = value->value;
  return plan(bytes, e, [=] { pad(self, widths->values, number, out); });
}

ASAP_OPERATOR(InplaceZero, Tensor self) {
  return plan(bytes, e, [=] { fill(self, 0); });
}
ASAP_OPERATOR(InplaceOne, Tensor self) {
  return plan(bytes, e, [=] { fill(self, 1); });
}
ASAP_OPERATOR(InplaceFillScalar, Tensor self, Scalar value) {
  const double number = value->value;
  return plan(bytes, e, [=] { fill(self, number); });
}
ASAP_OPERATOR(InplaceFillTensor, Tensor self, Tensor value) {
  return plan(bytes, e, [=] { write(self, read(value, self->dims)); });
}

ASAP_OPERATOR(Arange, Scalar start, Scalar, Scalar step, Tensor out) {
  const double first = start->value, stride = step->value;
  return plan(bytes, e, [=] {
    Numbers numbers(static_cast<std::size_t>(out->count()));
    for (std::size_t n = 0; n < numbers.size(); ++n) {
      numbers[n] = first + static_cast<double>(n) * stride;
    }
    write(out, numbers);
  });
}
}
