#include "stages.hpp"

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "../host/crew.hpp"
#include "arrays.hpp"
#include "asap/attention.hpp"
#include "asap/products.hpp"
#include "asap/stages.hpp"

namespace asap {
namespace {

std::int64_t num_columns_of(const py::buffer_info& array) {
  return array.ndim == 2 ? array.shape[1] : 0;
}

// Of two contiguous arrays; the stages read one while they write the other.
bool overlap(const py::buffer_info& a, const py::buffer_info& b) {
  const auto* begin_a = static_cast<const std::byte*>(a.ptr);
  const auto* begin_b = static_cast<const std::byte*>(b.ptr);
  const std::less<const std::byte*> before;
  return before(begin_a, begin_b + b.size * b.itemsize) &&
         before(begin_b, begin_a + a.size * a.itemsize);
}

const float* vector_of(const py::buffer_info& array, const char* name, std::int64_t length) {
  ASAP_CHECK(array.ndim == 1 && array.shape[0] == length, name, " must be a vector of ", length);
  ASAP_CHECK(array.item_type_is_equivalent_to<float>() && array.strides[0] == array.itemsize, name,
             " must be contiguous float32");
  return static_cast<const float*>(array.ptr);
}

void bound_swiglu(const py::buffer& out, const py::buffer& gate_up, const std::string& row_type) {
  const py::buffer_info out_RI = out.request(/*writable=*/true);
  const py::buffer_info gate_up_RJ = gate_up.request();
  const std::int64_t num_rows = num_rows_of(out_RI);
  const std::int64_t width = num_columns_of(out_RI);
  const RowType type = row_type_of(row_type);
  const Rows to = rows_of(out_RI, "out", num_rows, width, type);
  const Rows from = rows_of(gate_up_RJ, "gate_up", num_rows, 2 * width, type);
  ASAP_CHECK(to.type == from.type, "out and gate_up differ in type");
  ASAP_CHECK(!overlap(out_RI, gate_up_RJ), "out and gate_up overlap");
  const py::gil_scoped_release no_gil;
  swiglu(to, from, num_rows);
}

void bound_rms_norm(const py::buffer& out, const py::buffer& x, const py::buffer& weight, float eps,
                    const std::string& row_type) {
  const py::buffer_info out_SH = out.request(/*writable=*/true);
  const py::buffer_info x_SH = x.request();
  const py::buffer_info weight_H = weight.request();
  const std::int64_t num_rows = num_rows_of(out_SH);
  const std::int64_t hidden = num_columns_of(out_SH);
  const Rows to = rows_of(out_SH, "out", num_rows, hidden, row_type_of(row_type));
  const float* from = values_of<float>(x_SH, "x", num_rows, hidden);
  const float* scale = vector_of(weight_H, "weight", hidden);
  ASAP_CHECK(!overlap(out_SH, x_SH), "out and x overlap");
  const py::gil_scoped_release no_gil;
  rms_norm(to, from, scale, eps, num_rows);
}

void bound_norm_and_rotate(const py::buffer& qkv, const py::buffer& query_norm,
                           const py::buffer& key_norm, const py::buffer& cos, const py::buffer& sin,
                           std::int64_t num_queries, std::int64_t num_keys, float eps,
                           const std::string& row_type) {
  const py::buffer_info qkv_SC = qkv.request(/*writable=*/true);
  const py::buffer_info query_norm_D = query_norm.request();
  const py::buffer_info key_norm_D = key_norm.request();
  const py::buffer_info cos_SF = cos.request();
  const py::buffer_info sin_SF = sin.request();
  const std::int64_t num_rows = num_rows_of(qkv_SC);
  const std::int64_t head_dim = query_norm_D.size;
  ASAP_CHECK(head_dim % 2 == 0, "head_dim=", head_dim, " is odd");
  const std::int64_t max_heads = num_columns_of(qkv_SC);
  ASAP_CHECK(num_queries >= 0 && num_queries <= max_heads && num_keys >= 0 && num_keys <= max_heads,
             "num_queries=", num_queries, " and num_keys=", num_keys, ": 0 to ", max_heads);
  const std::int64_t width = (num_queries + 2 * num_keys) * head_dim;
  const Rows rows = rows_of(qkv_SC, "qkv", num_rows, width, row_type_of(row_type));
  const Heads heads{num_queries,
                    num_keys,
                    head_dim,
                    vector_of(query_norm_D, "query_norm", head_dim),
                    vector_of(key_norm_D, "key_norm", head_dim),
                    eps};
  const float* cosines = values_of<float>(cos_SF, "cos", num_rows, head_dim / 2);
  const float* sines = values_of<float>(sin_SF, "sin", num_rows, head_dim / 2);
  const py::gil_scoped_release no_gil;
  norm_and_rotate(rows, heads, cosines, sines, num_rows);
}

// The last three dimensions of `matrix`: panels that have `width` of the outputs each.
Panels panels_of(const py::buffer_info& matrix, const char* name, std::int64_t num_inputs,
                 std::int64_t num_outputs, std::int64_t width) {
  const auto ndim = static_cast<std::size_t>(matrix.ndim);
  ASAP_CHECK(ndim >= 3 && matrix.shape[ndim - 3] == num_panels(num_outputs, width) &&
                 matrix.shape[ndim - 2] == num_inputs && matrix.shape[ndim - 1] == kPanel,
             name, " must be panels [", num_panels(num_outputs, width), ", ", num_inputs, ", ",
             kPanel, "]");
  py::ssize_t stride = matrix.itemsize;
  for (std::size_t dim = ndim; dim-- > 0; stride *= matrix.shape[dim]) {
    ASAP_CHECK(matrix.strides[dim] == stride, name, " is not C-contiguous");
  }
  ASAP_CHECK(matrix.item_type_is_equivalent_to<float>(), name, " must be float32");
  return {static_cast<const float*>(matrix.ptr), num_inputs, num_outputs};
}

float* results_of(const py::buffer_info& out, std::int64_t num_rows) {
  ASAP_CHECK(out.item_type_is_equivalent_to<float>(), "out must be float32");
  check_shape(out, "out", num_rows, num_columns_of(out));
  return static_cast<float*>(out.ptr);
}

void bound_multiply(const py::buffer& out, const py::buffer& x, const py::buffer& panels,
                    int num_threads) {
  const py::buffer_info out_SN = out.request(/*writable=*/true);
  const py::buffer_info x_SK = x.request();
  const py::buffer_info panels_PKC = panels.request();
  const std::int64_t num_rows = num_rows_of(x_SK);
  const std::int64_t num_inputs = num_columns_of(x_SK);
  const float* rows = values_of<float>(x_SK, "x", num_rows, num_inputs);
  float* results = results_of(out_SN, num_rows);
  const Panels matrix = panels_of(panels_PKC, "panels", num_inputs, num_columns_of(out_SN), kPanel);
  ASAP_CHECK(!overlap(out_SN, x_SK), "out and x overlap");
  const py::gil_scoped_release no_gil;
  multiply(results, rows, matrix, num_rows, num_threads);
}

void bound_multiply_swiglu(const py::buffer& out, const py::buffer& x, const py::buffer& num_rows,
                           const py::buffer& gate_up, const py::buffer& down, int num_threads) {
  const py::buffer_info out_RH = out.request(/*writable=*/true);
  const py::buffer_info x_RH = x.request();
  const py::buffer_info num_rows_E = num_rows.request();
  const py::buffer_info gate_up_EPHC = gate_up.request();
  const py::buffer_info down_EPIC = down.request();
  ASAP_CHECK(gate_up_EPHC.ndim == 4 && down_EPIC.ndim == 4 && num_rows_E.ndim == 1 &&
                 gate_up_EPHC.shape[0] == num_rows_E.shape[0] &&
                 down_EPIC.shape[0] == num_rows_E.shape[0],
             "num_rows, gate_up and down must be of as many experts");
  ASAP_CHECK(num_rows_E.item_type_is_equivalent_to<std::int32_t>() &&
                 num_rows_E.strides[0] == num_rows_E.itemsize,
             "num_rows must be contiguous int32");
  const std::span<const std::int32_t> rows_of_experts{
      static_cast<const std::int32_t*>(num_rows_E.ptr), static_cast<std::size_t>(num_rows_E.size)};
  std::int64_t sum = 0;
  for (const std::int32_t count : rows_of_experts) {
    ASAP_CHECK(count >= 0, "an expert has ", count, " rows");
    sum += count;
  }
  ASAP_CHECK(sum == num_rows_of(x_RH), "num_rows sum to ", sum, ", x has ", num_rows_of(x_RH));
  const std::int64_t num_inputs = num_columns_of(x_RH);
  const std::int64_t width = down_EPIC.shape[2];
  const float* rows = values_of<float>(x_RH, "x", sum, num_inputs);
  float* results = results_of(out_RH, sum);
  const Panels first = panels_of(gate_up_EPHC, "gate_up", num_inputs, width, kHalfPanel);
  const Panels second = panels_of(down_EPIC, "down", width, num_columns_of(out_RH), kPanel);
  ASAP_CHECK(!overlap(out_RH, x_RH), "out and x overlap");
  const py::gil_scoped_release no_gil;
  multiply_swiglu(results, rows, rows_of_experts, first, second, num_threads);
}

// Any strides but that of a vector's numbers.
HeadVectors vectors_of(const py::buffer_info& array, const char* name) {
  ASAP_CHECK(array.ndim == 3 && array.item_type_is_equivalent_to<float>(), name,
             " must be float32 of three dimensions");
  ASAP_CHECK(array.shape[2] <= 1 || array.strides[2] == array.itemsize, name,
             ": numbers of a vector must lie side by side");
  ASAP_CHECK(array.strides[0] % array.itemsize == 0 && array.strides[1] % array.itemsize == 0, name,
             " is not aligned");
  return {static_cast<const float*>(array.ptr),
          array.shape[0],
          array.shape[1],
          array.shape[2],
          array.strides[0] / array.itemsize,
          array.strides[1] / array.itemsize};
}

void bound_attend(const py::buffer& out, const py::buffer& query, const py::buffer& key,
                  const py::buffer& value, float scale, int num_threads) {
  const py::buffer_info out_nNV = out.request(/*writable=*/true);
  const py::buffer_info query_NnD = query.request();
  const py::buffer_info key_GmD = key.request();
  const py::buffer_info value_GmV = value.request();
  const HeadVectors queries = vectors_of(query_NnD, "query");
  const HeadVectors keys = vectors_of(key_GmD, "key");
  const HeadVectors values = vectors_of(value_GmV, "value");
  ASAP_CHECK(keys.num_heads > 0 && queries.num_heads % keys.num_heads == 0 &&
                 queries.width == keys.width && queries.num_tokens <= keys.num_tokens,
             "query [", queries.num_heads, ", ", queries.num_tokens, ", ", queries.width,
             "] does not fit key [", keys.num_heads, ", ", keys.num_tokens, ", ", keys.width, "]");
  ASAP_CHECK(values.num_heads == keys.num_heads && values.num_tokens == keys.num_tokens, "value [",
             values.num_heads, ", ", values.num_tokens, "] does not fit key [", keys.num_heads,
             ", ", keys.num_tokens, "]");
  const HeadVectors results = vectors_of(out_nNV, "out");
  ASAP_CHECK(results.num_heads == queries.num_tokens && results.num_tokens == queries.num_heads &&
                 results.width == values.width &&
                 (out_nNV.size == 0 || (results.token_stride == results.width &&
                                        results.head_stride == queries.num_heads * results.width)),
             "out must be contiguous [", queries.num_tokens, ", ", queries.num_heads, ", ",
             values.width, "]");
  const py::gil_scoped_release no_gil;
  attend(static_cast<float*>(out_nNV.ptr), queries, keys, values, scale, num_threads);
}

}  // namespace

void bind_stages(py::module_& m) {
  m.def("swiglu", &bound_swiglu, py::arg("out"), py::arg("gate_up"), py::arg("row_type"));
  m.def("rms_norm", &bound_rms_norm, py::arg("out"), py::arg("x"), py::arg("weight"),
        py::arg("eps"), py::arg("row_type"));
  m.def("norm_and_rotate", &bound_norm_and_rotate, py::arg("qkv"), py::arg("query_norm"),
        py::arg("key_norm"), py::arg("cos"), py::arg("sin"), py::arg("num_queries"),
        py::arg("num_keys"), py::arg("eps"), py::arg("row_type"));
  m.def("attend", &bound_attend, py::arg("out"), py::arg("query"), py::arg("key"), py::arg("value"),
        py::arg("scale"), py::arg("num_threads"));
  m.def("multiply", &bound_multiply, py::arg("out"), py::arg("x"), py::arg("panels"),
        py::arg("num_threads"));
  m.def("multiply_swiglu", &bound_multiply_swiglu, py::arg("out"), py::arg("x"),
        py::arg("num_rows"), py::arg("gate_up"), py::arg("down"), py::arg("num_threads"));
  m.attr("SHAREABLE") = kShareable;
  m.def("team_of", &team_of, py::arg("num_threads"));
}

}  // namespace asap
