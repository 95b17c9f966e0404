#include "stages.hpp"

#include <cstddef>
#include <functional>
#include <string>

#include "arrays.hpp"
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

}  // namespace

void bind_stages(py::module_& m) {
  m.def("swiglu", &bound_swiglu, py::arg("out"), py::arg("gate_up"), py::arg("row_type"));
  m.def("rms_norm", &bound_rms_norm, py::arg("out"), py::arg("x"), py::arg("weight"),
        py::arg("eps"), py::arg("row_type"));
  m.def("norm_and_rotate", &bound_norm_and_rotate, py::arg("qkv"), py::arg("query_norm"),
        py::arg("key_norm"), py::arg("cos"), py::arg("sin"), py::arg("num_queries"),
        py::arg("num_keys"), py::arg("eps"), py::arg("row_type"));
}

}  // namespace asap
