// A libopapi for tests: the operators that asap_ray/backends/ascend/operators.py uses, as
// documented, by loops over device memory, which is host memory here. An operator that is not here
// does not exist.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string_view>
#include <vector>

namespace {

constexpr int kInvalid = 161002;
constexpr int kFloat32 = 0, kFloat16 = 1, kInt32 = 3, kInt64 = 9, kBool = 12, kBfloat16 = 27;
constexpr std::int64_t kHalves = 0, kPairs = 1;  // modes of rotary embedding

using Executor = std::function<void()>;

int run(Executor* executor) {
  (*executor)();
  delete executor;
  return 0;
}

int plan(std::uint64_t* workspace_bytes, Executor** executor, Executor work) {
  *workspace_bytes = 0;
  *executor = new Executor(std::move(work));
  return 0;
}

}  // namespace

struct aclTensor {
  std::vector<std::int64_t> dims, strides;
  int type;
  std::byte* data;

  std::int64_t dim(int axis) const {
    return dims[static_cast<std::size_t>(axis < 0 ? axis + std::ssize(dims) : axis)];
  }
  std::int64_t count() const {
    std::int64_t count = 1;
    for (const std::int64_t dim : dims) count *= dim;
    return count;
  }
  std::int64_t element_bytes() const {
    return type == kInt64 ? 8 : type == kBool ? 1 : type == kFloat16 || type == kBfloat16 ? 2 : 4;
  }
  // The element that is `n`th when the last axis goes fastest.
  std::byte* at(std::int64_t n) const {
    std::int64_t place = 0;
    for (std::ptrdiff_t axis = std::ssize(dims) - 1; axis >= 0; --axis) {
      const auto index = static_cast<std::size_t>(axis);
      place += n % dims[index] * strides[index];
      n /= dims[index];
    }
    return data + place * element_bytes();
  }
  double get(std::int64_t n) const {
    const std::byte* from = at(n);
    const auto as = [from](auto value) {
      std::memcpy(&value, from, sizeof(value));
      return value;
    };
    switch (type) {
      case kFloat16:
        return static_cast<double>(as(_Float16{}));
      case kBfloat16: {
        const std::uint32_t bits = std::uint32_t{as(std::uint16_t{})} << 16;
        float value;
        std::memcpy(&value, &bits, sizeof(value));
        return value;
      }
      case kInt32:
        return as(std::int32_t{});
      case kInt64:
        return static_cast<double>(as(std::int64_t{}));
      case kBool:
        return as(std::uint8_t{});
      default:
        return as(float{});
    }
  }
  void set(std::int64_t n, double value) const {
    std::byte* to = at(n);
    const auto put = [to](auto typed) { std::memcpy(to, &typed, sizeof(typed)); };
    switch (type) {
      case kFloat16:
        return put(static_cast<_Float16>(value));
      case kBfloat16: {
        const auto narrow = static_cast<float>(value);
        std::uint32_t bits;
        std::memcpy(&bits, &narrow, sizeof(bits));
        return put(static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
      }
      case kInt32:
        return put(static_cast<std::int32_t>(value));
      case kInt64:
        return put(static_cast<std::int64_t>(value));
      case kBool:
        return put(static_cast<std::uint8_t>(value != 0));
      default:
        return put(static_cast<float>(value));
    }
  }
};

struct aclTensorList {
  std::vector<const aclTensor*> tensors;
};
struct aclIntArray {
  std::vector<std::int64_t> values;
};

namespace {

using Tensor = const aclTensor*;
using List = const aclTensorList*;
using Ints = const aclIntArray*;

void copy(Tensor to, Tensor from) {
  for (std::int64_t n = 0; n < to->count(); ++n) to->set(n, from->get(n));
}

void rms_norm(Tensor x, Tensor gamma, double eps, Tensor y, Tensor scale) {
  const std::int64_t hidden = gamma->count();
  for (std::int64_t row = 0; row < x->count() / hidden; ++row) {
    double sum = 0;
    for (std::int64_t h = 0; h < hidden; ++h) {
      sum += x->get(row * hidden + h) * x->get(row * hidden + h);
    }
    const double factor = 1 / std::sqrt(sum / static_cast<double>(hidden) + eps);
    scale->set(row, factor);
    for (std::int64_t h = 0; h < hidden; ++h) {
      y->set(row * hidden + h, x->get(row * hidden + h) * factor * gamma->get(h));
    }
  }
}

void swiglu(Tensor x, Tensor out) {
  const std::int64_t width = out->dim(-1);
  for (std::int64_t n = 0; n < out->count(); ++n) {
    const std::int64_t gate = n / width * 2 * width + n % width;
    const double value = x->get(gate);
    out->set(n, value / (1 + std::exp(-value)) * x->get(gate + width));
  }
}

// x [1, S, N, D], angles [1, S, 1, D]; a number is turned with the one `step` away.
void rotate(Tensor x, Tensor cos, Tensor sin, std::int64_t step, Tensor out) {
  const std::int64_t heads = x->dim(2), width = x->dim(3);
  for (std::int64_t n = 0; n < x->count(); ++n) {
    const std::int64_t d = n % width, angle = n / (heads * width) * width + d;
    const double other = d / step % 2 == 0 ? -x->get(n + step) : x->get(n - step);
    out->set(n, x->get(n) * cos->get(angle) + other * sin->get(angle));
  }
}

// query [1, N, n, D], key [1, G, m, D], value [1, G, m, V]. A causal query sees keys up to its own,
// the last query the last key.
void attend(Tensor query, Tensor key, Tensor value, double scale, bool is_causal, Tensor out) {
  const std::int64_t num_new = query->dim(2), num_keys = key->dim(2), width = query->dim(3);
  const std::int64_t value_width = value->dim(3), share = query->dim(1) / key->dim(1);
  for (std::int64_t row = 0; row < query->dim(1) * num_new; ++row) {
    const std::int64_t head = row / num_new / share;
    const std::int64_t seen = is_causal ? num_keys - num_new + row % num_new + 1 : num_keys;
    std::vector<double> scores(static_cast<std::size_t>(seen));
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::int64_t k = 0; k < seen; ++k) {
      double& score = scores[static_cast<std::size_t>(k)];
      for (std::int64_t d = 0; d < width; ++d) {
        score += query->get(row * width + d) * key->get((head * num_keys + k) * width + d) * scale;
      }
      largest = std::max(largest, score);
    }
    for (double& score : scores) sum += score = std::exp(score - largest);
    for (std::int64_t d = 0; d < value_width; ++d) {
      double mixed = 0;
      for (std::int64_t k = 0; k < seen; ++k) {
        mixed += scores[static_cast<std::size_t>(k)] / sum *
                 value->get((head * num_keys + k) * value_width + d);
      }
      out->set(row * value_width + d, mixed);
    }
  }
}

// rows [R, I], matrices [E, I, J], counts [E].
void multiply_groups(Tensor rows, Tensor matrices, Tensor counts, Tensor out) {
  const std::int64_t inner = rows->dim(1), columns = matrices->dim(2);
  std::int64_t row = 0;
  for (std::int64_t x = 0; x < counts->count(); ++x) {
    const std::int64_t stop = row + static_cast<std::int64_t>(counts->get(x));
    for (; row < stop; ++row) {
      for (std::int64_t j = 0; j < columns; ++j) {
        double sum = 0;
        for (std::int64_t i = 0; i < inner; ++i) {
          sum += rows->get(row * inner + i) * matrices->get((x * inner + i) * columns + j);
        }
        out->set(row * columns + j, sum);
      }
    }
  }
}

// Only the mask that hides what comes after a query at the end is understood here.
bool is_known_mask(Tensor mask, std::int64_t sparse_mode) {
  return mask == nullptr || (sparse_mode == 3 && mask->type == kBool && mask->dim(-1) == 2048 &&
                             mask->dim(-2) == 2048 && mask->get(1) == 1 && mask->get(2048) == 0);
}

}  // namespace

extern "C" {

aclTensor* aclCreateTensor(const std::int64_t* dims, std::uint64_t num_dims, int type,
                           const std::int64_t* strides, std::int64_t offset, int,
                           const std::int64_t*, std::uint64_t, void* data) {
  auto* tensor =
      new aclTensor{{dims, dims + num_dims}, {strides, strides + num_dims}, type, nullptr};
  tensor->data = static_cast<std::byte*>(data) + offset * tensor->element_bytes();
  return tensor;
}
int aclDestroyTensor(const aclTensor* tensor) {
  delete tensor;
  return 0;
}
aclTensorList* aclCreateTensorList(const aclTensor* const* tensors, std::uint64_t size) {
  return new aclTensorList{{tensors, tensors + size}};
}
int aclDestroyTensorList(const aclTensorList* list) {
  for (const aclTensor* tensor : list->tensors) delete tensor;
  delete list;
  return 0;
}
aclIntArray* aclCreateIntArray(const std::int64_t* values, std::uint64_t size) {
  return new aclIntArray{{values, values + size}};
}
int aclDestroyIntArray(const aclIntArray* array) {
  delete array;
  return 0;
}

#define ASAP_SECOND_PHASE(name) \
  int name(void*, std::uint64_t, Executor* executor, void*) { return run(executor); }
ASAP_SECOND_PHASE(aclnnInplaceCopy)
ASAP_SECOND_PHASE(aclnnCast)
ASAP_SECOND_PHASE(aclnnCat)
ASAP_SECOND_PHASE(aclnnRmsNorm)
ASAP_SECOND_PHASE(aclnnSwiGlu)
ASAP_SECOND_PHASE(aclnnRotaryPositionEmbedding)
ASAP_SECOND_PHASE(aclnnFlashAttentionScore)
ASAP_SECOND_PHASE(aclnnFusedInferAttentionScoreV3)
ASAP_SECOND_PHASE(aclnnGroupedMatmulV5)

int aclnnInplaceCopyGetWorkspaceSize(Tensor to, Tensor from, std::uint64_t* bytes, Executor** e) {
  if (to->count() != from->count()) return kInvalid;
  return plan(bytes, e, [=] { copy(to, from); });
}

int aclnnCastGetWorkspaceSize(Tensor from, int, Tensor to, std::uint64_t* bytes, Executor** e) {
  return plan(bytes, e, [=] { copy(to, from); });
}

// Along the last axis.
int aclnnCatGetWorkspaceSize(List list, std::int64_t axis, Tensor out, std::uint64_t* bytes,
                             Executor** e) {
  if (axis != -1 && axis != std::ssize(out->dims) - 1) return kInvalid;
  return plan(bytes, e, [=] {
    std::int64_t first = 0;
    for (const Tensor tensor : list->tensors) {
      const std::int64_t width = tensor->dim(-1);
      for (std::int64_t n = 0; n < tensor->count(); ++n) {
        out->set(n / width * out->dim(-1) + first + n % width, tensor->get(n));
      }
      first += width;
    }
  });
}

int aclnnRmsNormGetWorkspaceSize(Tensor x, Tensor gamma, double eps, Tensor y, Tensor scale,
                                 std::uint64_t* bytes, Executor** e) {
  return plan(bytes, e, [=] { rms_norm(x, gamma, eps, y, scale); });
}

int aclnnSwiGluGetWorkspaceSize(Tensor x, std::int64_t axis, Tensor out, std::uint64_t* bytes,
                                Executor** e) {
  if (axis != -1) return kInvalid;
  return plan(bytes, e, [=] { swiglu(x, out); });
}

int aclnnRotaryPositionEmbeddingGetWorkspaceSize(Tensor x, Tensor cos, Tensor sin,
                                                 std::int64_t mode, Tensor out,
                                                 std::uint64_t* bytes, Executor** e) {
  if ((mode != kHalves && mode != kPairs) || x->dims.size() != 4 || x->dim(0) != 1 ||
      cos->dim(2) != 1 || cos->dim(3) != x->dim(3)) {
    return kInvalid;
  }
  const std::int64_t step = mode == kPairs ? 1 : x->dim(3) / 2;
  return plan(bytes, e, [=] { rotate(x, cos, sin, step, out); });
}

int aclnnFlashAttentionScoreGetWorkspaceSize(Tensor query, Tensor key, Tensor value, Tensor, Tensor,
                                             Tensor, Tensor mask, Ints, double scale,
                                             double keep_share, std::int64_t, std::int64_t,
                                             std::int64_t num_heads, char* layout, std::int64_t,
                                             std::int64_t sparse_mode, Tensor, Tensor, Tensor,
                                             Tensor out, std::uint64_t* bytes, Executor** e) {
  if (std::string_view(layout) != "BNSD" || num_heads != query->dim(1) || keep_share != 1 ||
      !is_known_mask(mask, sparse_mode)) {
    return kInvalid;
  }
  return plan(bytes, e, [=] { attend(query, key, value, scale, mask != nullptr, out); });
}

int aclnnFusedInferAttentionScoreV3GetWorkspaceSize(
    Tensor query, List keys, List values, Tensor, Tensor mask, Ints, Ints, Tensor, Tensor, Tensor,
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
    Tensor, Ints, Tensor, Tensor, std::int64_t num_heads, double scale, std::int64_t, std::int64_t,
    char* layout, std::int64_t num_key_heads, std::int64_t sparse_mode, std::int64_t, std::int64_t,
    std::int64_t, bool, std::int64_t, std::int64_t, Tensor out, Tensor, std::uint64_t* bytes,
    Executor** e) {
  const Tensor key = keys->tensors.at(0), value = values->tensors.at(0);
  if (std::string_view(layout) != "BNSD" || num_heads != query->dim(1) ||
      num_key_heads != key->dim(1) || query->type == kFloat32 || key->dims != value->dims ||
      !is_known_mask(mask, sparse_mode)) {
    return kInvalid;
  }
  return plan(bytes, e, [=] { attend(query, key, value, scale, mask != nullptr, out); });
}

int aclnnGroupedMatmulV5GetWorkspaceSize(List rows, List matrices, List, List, List, List, List,
                                         List, Tensor counts, List, List, List,
                                         std::int64_t split_item, std::int64_t group_type,
                                         std::int64_t group_list_type, std::int64_t, Ints, List out,
                                         List, List, std::uint64_t* bytes, Executor** e) {
  if (split_item != 3 || group_type != 0 || group_list_type != 1 || counts->type != kInt64) {
    return kInvalid;
  }
  return plan(bytes, e, [=] {
    multiply_groups(rows->tensors.at(0), matrices->tensors.at(0), counts, out->tensors.at(0));
  });
}
}
