// Operators of aten whose results depend on one element of each operand; operands broadcast.
#include <algorithm>
#include <cmath>

#include "operators.hpp"

using namespace fake;

namespace {

// A tensor, or the same number everywhere.
struct Operand {
  Tensor tensor;
  double number;

  Operand(Tensor from) : tensor(from), number(0) {}
  Operand(Scalar from) : tensor(nullptr), number(from->value) {}

  Numbers as(const Dims& dims) const {
    return tensor != nullptr ? read(tensor, dims)
                             : Numbers(static_cast<std::size_t>(count(dims)), number);
  }
};

template <typename Formula>
int map(std::uint64_t* bytes, Executor** e, Tensor out, Operand a, Formula formula) {
  return plan(bytes, e, [=] {
    Numbers numbers = a.as(out->dims);
    for (double& number : numbers) number = formula(number);
    write(out, numbers);
  });
}

template <typename Formula>
int map(std::uint64_t* bytes, Executor** e, Tensor out, Operand a, Operand b, Formula formula) {
  return plan(bytes, e, [=] {
    Numbers numbers = a.as(out->dims);
    const Numbers others = b.as(out->dims);
    for (std::size_t n = 0; n < numbers.size(); ++n) numbers[n] = formula(numbers[n], others[n]);
    write(out, numbers);
  });
}

template <typename Formula>
int map(std::uint64_t* bytes, Executor** e, Tensor out, Operand a, Operand b, Operand c,
        Formula formula) {
  return plan(bytes, e, [=] {
    Numbers numbers = a.as(out->dims);
    const Numbers others = b.as(out->dims), thirds = c.as(out->dims);
    for (std::size_t n = 0; n < numbers.size(); ++n) {
      numbers[n] = formula(numbers[n], others[n], thirds[n]);
    }
    write(out, numbers);
  });
}

std::int64_t whole(double number) { return static_cast<std::int64_t>(number); }

double power(double base, double exponent) { return std::pow(base, exponent); }

// As Python's %: of the divisor's sign.
double remainder_of(double a, double b) { return a - std::floor(a / b) * b; }

double filled(double a, double is_masked, double value) { return is_masked != 0 ? value : a; }

constexpr int kTruncated = 1, kFloor = 2;  // modes of a division

double divide(double a, double b, int mode) {
  return mode == kFloor ? std::floor(a / b) : mode == kTruncated ? std::trunc(a / b) : a / b;
}

}  // namespace

extern "C" {

#define ASAP_UNARY(name, formula)                                      \
  ASAP_OPERATOR(name, Tensor self, Tensor out) {                       \
    return map(bytes, e, out, self, [](double a) { return formula; }); \
  }
#define ASAP_UNARY_IN_PLACE(name, formula)                              \
  ASAP_UNARY(name, formula)                                             \
  ASAP_OPERATOR(Inplace##name, Tensor self) {                           \
    return map(bytes, e, self, self, [](double a) { return formula; }); \
  }
ASAP_UNARY(Neg, -a)
ASAP_UNARY(Abs, std::abs(a))
ASAP_UNARY(Silu, a / (1 + std::exp(-a)))
ASAP_UNARY_IN_PLACE(Rsqrt, 1 / std::sqrt(a))
ASAP_UNARY_IN_PLACE(Sqrt, std::sqrt(a))
ASAP_UNARY_IN_PLACE(Reciprocal, 1 / a)
ASAP_UNARY_IN_PLACE(Exp, std::exp(a))
ASAP_UNARY_IN_PLACE(Log, std::log(a))
ASAP_UNARY_IN_PLACE(Sigmoid, 1 / (1 + std::exp(-a)))
ASAP_UNARY_IN_PLACE(Relu, std::max(a, 0.0))
ASAP_UNARY_IN_PLACE(Cos, std::cos(a))
ASAP_UNARY_IN_PLACE(Sin, std::sin(a))
ASAP_UNARY_IN_PLACE(LogicalNot, a == 0)

ASAP_OPERATOR(BitwiseNot, Tensor self, Tensor out) {
  const bool is_bool = self->type == kBool;
  return map(bytes, e, out, self, [=](double a) {
    return is_bool ? static_cast<double>(a == 0) : static_cast<double>(~whole(a));
  });
}

#define ASAP_TENSORS(name, formula)                                                     \
  ASAP_OPERATOR(name, Tensor self, Tensor other, Tensor out) {                          \
    return map(bytes, e, out, self, other, [](double a, double b) { return formula; }); \
  }
#define ASAP_TENSORS_IN_PLACE(name, formula)                                             \
  ASAP_TENSORS(name, formula)                                                            \
  ASAP_OPERATOR(Inplace##name, Tensor self, Tensor other) {                              \
    return map(bytes, e, self, self, other, [](double a, double b) { return formula; }); \
  }
#define ASAP_WITH_SCALAR(name, formula)                                                 \
  ASAP_OPERATOR(name, Tensor self, Scalar other, Tensor out) {                          \
    return map(bytes, e, out, self, other, [](double a, double b) { return formula; }); \
  }
#define ASAP_BINARY(name, with_scalar, formula)                                          \
  ASAP_TENSORS_IN_PLACE(name, formula)                                                   \
  ASAP_WITH_SCALAR(with_scalar, formula)                                                 \
  ASAP_OPERATOR(Inplace##with_scalar, Tensor self, Scalar other) {                       \
    return map(bytes, e, self, self, other, [](double a, double b) { return formula; }); \
  }
ASAP_TENSORS(Maximum, std::max(a, b))
ASAP_TENSORS(Minimum, std::min(a, b))
ASAP_TENSORS_IN_PLACE(LogicalAnd, a != 0 && b != 0)
ASAP_TENSORS_IN_PLACE(LogicalOr, a != 0 || b != 0)
ASAP_BINARY(Mul, Muls, a* b)
ASAP_BINARY(Div, Divs, a / b)
ASAP_BINARY(FloorDivide, FloorDivides, std::floor(a / b))
ASAP_BINARY(RemainderTensorTensor, RemainderTensorScalar, remainder_of(a, b))
ASAP_BINARY(PowTensorTensor, PowTensorScalar, power(a, b))
ASAP_BINARY(BitwiseAndTensor, BitwiseAndScalar, static_cast<double>(whole(a) & whole(b)))
ASAP_TENSORS(BitwiseOrTensor, static_cast<double>(whole(a) | whole(b)))
ASAP_WITH_SCALAR(BitwiseOrScalar, static_cast<double>(whole(a) | whole(b)))
ASAP_BINARY(EqTensor, EqScalar, a == b)
ASAP_BINARY(NeTensor, NeScalar, a != b)
ASAP_BINARY(LtTensor, LtScalar, a < b)
ASAP_BINARY(LeTensor, LeScalar, a <= b)
ASAP_BINARY(GtTensor, GtScalar, a > b)
ASAP_BINARY(GeTensor, GeScalar, a >= b)

ASAP_OPERATOR(PowScalarTensor, Scalar self, Tensor exponent, Tensor out) {
  return map(bytes, e, out, self, exponent, power);
}

// The second operand is scaled first.
#define ASAP_SCALED(name, other_type, sign)                                                        \
  ASAP_OPERATOR(name, Tensor self, other_type other, Scalar alpha, Tensor out) {                   \
    const double scale = sign alpha->value;                                                        \
    return map(bytes, e, out, self, other, [scale](double a, double b) { return a + scale * b; }); \
  }                                                                                                \
  ASAP_OPERATOR(Inplace##name, Tensor self, other_type other, Scalar alpha) {                      \
    const double scale = sign alpha->value;                                                        \
    return map(bytes, e, self, self, other,                                                        \
               [scale](double a, double b) { return a + scale * b; });                             \
  }
ASAP_SCALED(Add, Tensor, +)
ASAP_SCALED(Adds, Scalar, +)
ASAP_SCALED(Sub, Tensor, -)
ASAP_SCALED(Subs, Scalar, -)

ASAP_OPERATOR(Rsubs, Tensor self, Scalar other, Scalar alpha, Tensor out) {
  const double scale = alpha->value;
  return map(bytes, e, out, self, other, [scale](double a, double b) { return b - scale * a; });
}

#define ASAP_ROUNDED_DIVISION(name, other_type)                              \
  ASAP_OPERATOR(name, Tensor self, other_type other, int mode, Tensor out) { \
    return map(bytes, e, out, self, other,                                   \
               [mode](double a, double b) { return divide(a, b, mode); });   \
  }
ASAP_ROUNDED_DIVISION(DivMod, Tensor)
ASAP_ROUNDED_DIVISION(DivMods, Scalar)

ASAP_OPERATOR(Clamp, Tensor self, Scalar least, Scalar most, Tensor out) {
  const double low = least == nullptr ? -HUGE_VAL : least->value;
  const double high = most == nullptr ? HUGE_VAL : most->value;
  return map(bytes, e, out, self, [=](double a) { return std::min(std::max(a, low), high); });
}
ASAP_OPERATOR(ClampMin, Tensor self, Scalar least, Tensor out) {
  return map(bytes, e, out, self, least, [](double a, double b) { return std::max(a, b); });
}

ASAP_OPERATOR(SWhere, Tensor condition, Tensor self, Tensor other, Tensor out) {
  return map(bytes, e, out, condition, self, other,
             [](double is_so, double a, double b) { return is_so != 0 ? a : b; });
}

ASAP_OPERATOR(InplaceMaskedFillScalar, Tensor self, Tensor mask, Scalar value) {
  return map(bytes, e, self, self, mask, value, filled);
}
ASAP_OPERATOR(InplaceMaskedFillTensor, Tensor self, Tensor mask, Tensor value) {
  return map(bytes, e, self, self, mask, value, filled);
}
}
