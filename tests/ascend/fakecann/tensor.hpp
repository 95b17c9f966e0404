// What a libopapi for tests hands to the operators: tensors of device memory, which is host memory
// here, of any strides; numbers of them in order, the last axis fastest.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace fake {

using Dims = std::vector<std::int64_t>;
using Numbers = std::vector<double>;  // exact for every type up to 2^53

enum Type : int {
  kFloat32 = 0,
  kFloat16 = 1,
  kInt8 = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 6,
  kInt64 = 9,
  kFloat64 = 11,
  kBool = 12,
  kBfloat16 = 27,
};

struct Bfloat16 {
  std::uint16_t bits;

  Bfloat16() = default;
  explicit Bfloat16(double value) {
    const auto narrow = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    bits = static_cast<std::uint16_t>((narrow + 0x7fff + (narrow >> 16 & 1)) >> 16);
  }
  template <typename Number>
  explicit operator Number() const {
    return static_cast<Number>(std::bit_cast<float>(std::uint32_t{bits} << 16));
  }
};

// Calls `use` with a zero of the type.
template <typename Use>
void with_type(int type, Use use) {
  switch (type) {
    case kFloat32:
      return use(float{});
    case kFloat16:
      return use(_Float16{});
    case kInt8:
      return use(std::int8_t{});
    case kInt32:
      return use(std::int32_t{});
    case kUint8:
      return use(std::uint8_t{});
    case kInt16:
      return use(std::int16_t{});
    case kInt64:
      return use(std::int64_t{});
    case kFloat64:
      return use(double{});
    case kBool:
      return use(bool{});
    case kBfloat16:
      return use(Bfloat16{});
    default:
      throw std::invalid_argument("a type that the fake does not know");
  }
}

inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

inline std::int64_t count(const Dims& dims) {
  std::int64_t product = 1;
  for (const std::int64_t dim : dims) product *= dim;
  return product;
}

// Strides of a tensor without gaps.
inline Dims packed(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (std::size_t axis = dims.size(); axis-- > 1;) {
    strides[axis - 1] = strides[axis] * dims[axis];
  }
  return strides;
}

// Calls `visit` with the place of each element, in order.
template <typename Visit>
void each(const Dims& dims, const Dims& strides, Visit visit) {
  const std::int64_t width = dims.empty() ? 1 : dims.back();
  const std::int64_t step = dims.empty() ? 0 : strides.back();
  Dims index(dims.size(), 0);
  std::int64_t row = 0;
  for (std::int64_t left = count(dims); left > 0; left -= width) {
    for (std::int64_t n = 0; n < width; ++n) visit(row + n * step);
    for (std::size_t axis = dims.empty() ? 0 : dims.size() - 1; axis-- > 0;) {
      row += strides[axis];
      if (++index[axis] < dims[axis]) break;
      row -= strides[axis] * dims[axis];
      index[axis] = 0;
    }
  }
}

}  // namespace fake

struct aclTensor {
  fake::Dims dims, strides;
  int type;
  std::byte* data;

  std::size_t axis(std::int64_t axis) const {
    const std::int64_t found = axis < 0 ? axis + std::ssize(dims) : axis;
    fake::require(found >= 0 && found < std::ssize(dims), "no such axis");
    return static_cast<std::size_t>(found);
  }
  std::int64_t dim(std::int64_t of) const { return dims[axis(of)]; }
  std::int64_t count() const { return fake::count(dims); }
};
struct aclScalar {
  double value;
};
struct aclTensorList {
  std::vector<const aclTensor*> tensors;
};
struct aclIntArray {
  fake::Dims values;
};

namespace fake {

using Tensor = const aclTensor*;
using Scalar = const aclScalar*;
using List = const aclTensorList*;
using Ints = const aclIntArray*;

// Elements at these strides.
template <typename Number = double>
std::vector<Number> load(Tensor tensor, const Dims& dims, const Dims& strides) {
  std::vector<Number> numbers(static_cast<std::size_t>(count(dims)));
  with_type(tensor->type, [&]<typename Element>(Element) {
    const auto* from = reinterpret_cast<const Element*>(tensor->data);
    Number* to = numbers.data();
    each(dims, strides, [&](std::int64_t place) { *to++ = static_cast<Number>(from[place]); });
  });
  return numbers;
}

// All of a tensor as if it had these dimensions: an axis of one, or one that is missing, repeats.
template <typename Number = double>
std::vector<Number> read(Tensor tensor, const Dims& dims) {
  require(tensor->dims.size() <= dims.size(), "more axes than the result has");
  Dims strides(dims.size(), 0);
  const std::size_t missing = dims.size() - tensor->dims.size();
  for (std::size_t axis = 0; axis < tensor->dims.size(); ++axis) {
    if (tensor->dims[axis] == 1) continue;
    require(tensor->dims[axis] == dims[missing + axis], "dimensions that do not broadcast");
    strides[missing + axis] = tensor->strides[axis];
  }
  return load<Number>(tensor, dims, strides);
}
template <typename Number = double>
std::vector<Number> read(Tensor tensor) {
  return load<Number>(tensor, tensor->dims, tensor->strides);
}
// Whole numbers, as an index is.
inline Dims read_ints(Tensor tensor) { return read<std::int64_t>(tensor); }

template <typename Number>
void write(Tensor out, const std::vector<Number>& numbers) {
  require(out->count() == std::ssize(numbers), "a result of another size");
  with_type(out->type, [&]<typename Element>(Element) {
    auto* to = reinterpret_cast<Element*>(out->data);
    const Number* from = numbers.data();
    each(out->dims, out->strides, [&](std::int64_t place) {
      if constexpr (std::is_integral_v<Element> && sizeof(Element) < 8 &&
                    !std::is_same_v<Element, bool>) {
        to[place] = static_cast<Element>(static_cast<std::int64_t>(*from++));  // keeps the low bits
      } else {
        to[place] = static_cast<Element>(*from++);
      }
    });
  });
}

// A tensor seen along one axis: lines of `length` numbers that are `step` apart.
struct Lines {
  std::int64_t outer = 1, length = 1, step = 1;

  Lines(const Dims& dims, std::size_t axis) {
    for (std::size_t n = 0; n < dims.size(); ++n)
      (n < axis ? outer : n > axis ? step : length) *= dims[n];
  }
  Lines(Tensor tensor, std::int64_t axis)
      : Lines(tensor->dims, tensor->dims.empty() ? 0 : tensor->axis(axis)) {}

  // Calls `visit` with where each line begins, and its number.
  template <typename Visit>
  void each(Visit visit) const {
    for (std::int64_t line = 0; line < outer * step; ++line) {
      visit(line / step * length * step + line % step, line);
    }
  }
};

}  // namespace fake
