// Products of matrices, in float32, as loops that the compiler vectorises.
#include <algorithm>

#include "operators.hpp"

using namespace fake;

namespace {

using Floats = std::vector<float>;

// out [I, J] += a [I, K] b [K, J].
void multiply(const float* a, const float* b, float* out, std::int64_t rows, std::int64_t inner,
              std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i) {
    float* row = out + i * columns;
    for (std::int64_t k = 0; k < inner; ++k) {
      const float factor = a[i * inner + k];
      const float* from = b + k * columns;
      for (std::int64_t j = 0; j < columns; ++j) row[j] += factor * from[j];
    }
  }
}

// a [..., I, K] b [..., K, J], or vectors in the place of either; batches broadcast.
Floats product(Tensor a, Tensor b) {
  Dims a_dims = a->dims, b_dims = b->dims;
  Dims a_strides = a->strides, b_strides = b->strides;
  if (a_dims.size() == 1) {
    a_dims.insert(a_dims.begin(), 1);
    a_strides.insert(a_strides.begin(), 0);
  }
  if (b_dims.size() == 1) {
    b_dims.push_back(1);
    b_strides.push_back(0);
  }
  const std::int64_t rows = a_dims.end()[-2], inner = a_dims.back(), columns = b_dims.back();
  require(inner == b_dims.end()[-2], "matrices that do not fit");
  const Dims& longer = a_dims.size() > b_dims.size() ? a_dims : b_dims;
  Dims batch(longer.begin(), longer.end() - 2);
  for (std::size_t axis = 0; axis < batch.size(); ++axis) {
    for (const Dims* dims : {&a_dims, &b_dims}) {
      const std::size_t missing = batch.size() + 2 - dims->size();
      if (axis >= missing) batch[axis] = std::max(batch[axis], (*dims)[axis - missing]);
    }
  }
  const auto whole = [&](Tensor of, const Dims& dims, const Dims& strides, std::int64_t height,
                         std::int64_t width) {
    const aclTensor matrices{dims, strides, of->type, of->data};
    Dims all = batch;
    all.insert(all.end(), {height, width});
    return read<float>(&matrices, all);
  };
  const Floats left = whole(a, a_dims, a_strides, rows, inner);
  const Floats right = whole(b, b_dims, b_strides, inner, columns);
  Floats out(static_cast<std::size_t>(count(batch) * rows * columns), 0);
  for (std::int64_t n = 0; n < count(batch); ++n) {
    multiply(left.data() + n * rows * inner, right.data() + n * inner * columns,
             out.data() + n * rows * columns, rows, inner, columns);
  }
  return out;
}

int multiplied(std::uint64_t* bytes, Executor** e, Tensor a, Tensor b, Tensor out) {
  return plan(bytes, e, [=] { write(out, product(a, b)); });
}

// beta self + alpha a b.
int added(std::uint64_t* bytes, Executor** e, Tensor self, Tensor a, Tensor b, Scalar beta,
          Scalar alpha, Tensor out) {
  const auto keep = static_cast<float>(beta->value), scale = static_cast<float>(alpha->value);
  return plan(bytes, e, [=] {
    Floats sums = product(a, b);
    const Floats others = read<float>(self, out->dims);
    for (std::size_t n = 0; n < sums.size(); ++n) sums[n] = keep * others[n] + scale * sums[n];
    write(out, sums);
  });
}

// rows [R, I], matrices [E, I, J], counts [E].
void multiply_groups(Tensor rows, Tensor matrices, Tensor counts, Tensor out) {
  const std::int64_t inner = rows->dim(1), columns = matrices->dim(2);
  const Floats left = read<float>(rows), right = read<float>(matrices);
  const Dims num_rows = read_ints(counts);
  Floats products(static_cast<std::size_t>(out->count()), 0);
  std::int64_t row = 0;
  for (std::size_t x = 0; x < num_rows.size(); ++x) {
    require(row + num_rows[x] <= rows->dim(0), "more rows counted than given");
    multiply(left.data() + row * inner,
             right.data() + static_cast<std::int64_t>(x) * inner * columns,
             products.data() + row * columns, num_rows[x], inner, columns);
    row += num_rows[x];
  }
  write(out, products);
}

struct Groups {
  std::int64_t split_item, group_type, group_list_type;
};

// One tensor of rows, one of results, a matrix for each group of rows, and the count of each.
int multiplied_in_groups(std::uint64_t* bytes, Executor** e, List rows, List matrices,
                         Tensor counts, Groups groups, List out) {
  if (groups.split_item != 3 || groups.group_type != 0 || groups.group_list_type != 1 ||
      counts->type != kInt64) {
    return kInvalid;
  }
  return plan(bytes, e, [=] {
    multiply_groups(rows->tensors.at(0), matrices->tensors.at(0), counts, out->tensors.at(0));
  });
}

}  // namespace

extern "C" {

ASAP_OPERATOR(Mm, Tensor a, Tensor b, Tensor out, std::int8_t) {
  return multiplied(bytes, e, a, b, out);
}
ASAP_OPERATOR(Mv, Tensor a, Tensor b, Tensor out, std::int8_t) {
  return multiplied(bytes, e, a, b, out);
}
ASAP_OPERATOR(BatchMatMul, Tensor a, Tensor b, Tensor out, std::int8_t) {
  return multiplied(bytes, e, a, b, out);
}
ASAP_OPERATOR(Matmul, Tensor a, Tensor b, Tensor out, std::int8_t) {
  return multiplied(bytes, e, a, b, out);
}
ASAP_OPERATOR(Addmm, Tensor self, Tensor a, Tensor b, Scalar beta, Scalar alpha, Tensor out,
              std::int8_t) {
  return added(bytes, e, self, a, b, beta, alpha, out);
}
ASAP_OPERATOR(InplaceAddmm, Tensor self, Tensor a, Tensor b, Scalar beta, Scalar alpha,
              std::int8_t) {
  return added(bytes, e, self, a, b, beta, alpha, self);
}
ASAP_OPERATOR(Baddbmm, Tensor self, Tensor a, Tensor b, Scalar beta, Scalar alpha, Tensor out,
              std::int8_t) {
  return added(bytes, e, self, a, b, beta, alpha, out);
}

// The wheel asks whether it is there before it takes the next.
ASAP_OPERATOR(GroupedMatmulV4, List rows, List matrices, List, List, List, List, List, List,
              Tensor counts, List, List, List, std::int64_t split_item, std::int64_t group_type,
              std::int64_t group_list_type, std::int64_t, List out, List, List) {
  return multiplied_in_groups(bytes, e, rows, matrices, counts,
                              {split_item, group_type, group_list_type}, out);
}
ASAP_OPERATOR(GroupedMatmulV5, List rows, List matrices, List, List, List, List, List, List,
              Tensor counts, List, List, List, std::int64_t split_item, std::int64_t group_type,
              std::int64_t group_list_type, std::int64_t, Ints, List out, List, List) {
  return multiplied_in_groups(bytes, e, rows, matrices, counts,
                              {split_item, group_type, group_list_type}, out);
}
}
