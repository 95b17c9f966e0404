// Operators of aten that find where a tensor is not zero; only they know how much that is.
#include "operators.hpp"

using namespace fake;

namespace {

// Gives a result the size that only now is known, without gaps.
void resize(Tensor out, Dims dims) {
  auto* tensor = const_cast<aclTensor*>(out);
  tensor->strides = packed(dims);
  tensor->dims = std::move(dims);
}

void nonzero(Tensor self, Tensor out) {
  const Numbers numbers = read(self);
  const Dims strides = packed(self->dims);
  Dims found;
  for (std::int64_t n = 0; n < self->count(); ++n) {
    if (numbers[static_cast<std::size_t>(n)] == 0) continue;
    for (std::size_t axis = 0; axis < strides.size(); ++axis) {
      found.push_back(n / strides[axis] % self->dims[axis]);
    }
  }
  const std::int64_t num_axes = std::ssize(self->dims);
  resize(out, {num_axes == 0 ? 0 : std::ssize(found) / num_axes, num_axes});
  write(out, found);
}

}  // namespace

extern "C" {

ASAP_OPERATOR(Nonzero, Tensor self, Tensor out) {
  return plan(bytes, e, [=] { nonzero(self, out); });
}
ASAP_OPERATOR(MaskedSelect, Tensor self, Tensor mask, Tensor out) {
  return plan(bytes, e, [=] {
    const Dims& dims = self->dims.size() > mask->dims.size() ? self->dims : mask->dims;
    const Numbers numbers = read(self, dims), is_chosen = read(mask, dims);
    Numbers chosen;
    for (std::size_t n = 0; n < numbers.size(); ++n) {
      if (is_chosen[n] != 0) chosen.push_back(numbers[n]);
    }
    resize(out, {std::ssize(chosen)});
    write(out, chosen);
  });
}
}
