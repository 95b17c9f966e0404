// Buffers from Python as rows and values, checked.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>

#include "asap/errors.hpp"
#include "asap/rows.hpp"

namespace py = pybind11;

namespace asap {

inline void check_shape(const py::buffer_info& array, const char* name, std::int64_t num_rows,
                        std::int64_t num_columns) {
  ASAP_CHECK(array.ndim == 2, name, " has ", array.ndim, " dimensions, expected 2");
  ASAP_CHECK(array.shape[0] == num_rows && array.shape[1] == num_columns, name, " has shape [",
             array.shape[0], ", ", array.shape[1], "], expected [", num_rows, ", ", num_columns,
             "]");
  ASAP_CHECK(array.size == 0 || (array.strides[1] == array.itemsize &&
                                 array.strides[0] == array.itemsize * num_columns),
             name, " is not C-contiguous");
}

// Rows cross as float32, or as uint16 standing for the 16-bit type in use (numpy has no bfloat16).
inline Rows rows_of(const py::buffer_info& array, const char* name, std::int64_t num_rows,
                    std::int64_t hidden, RowType row_type) {
  check_shape(array, name, num_rows, hidden);
  auto* bytes = static_cast<std::byte*>(array.ptr);
  if (array.item_type_is_equivalent_to<float>()) return {bytes, RowType::float32, hidden};
  ASAP_CHECK(array.item_type_is_equivalent_to<std::uint16_t>() && row_type != RowType::float32,
             name, " has elements of format '", array.format,
             "'; expected float32, or uint16 where rows travel in a 16-bit type");
  return {bytes, row_type, hidden};
}

template <class T>
const T* values_of(const py::buffer_info& array, const char* name, std::int64_t num_rows,
                   std::int64_t num_columns) {
  check_shape(array, name, num_rows, num_columns);
  ASAP_CHECK(array.item_type_is_equivalent_to<T>(), name, " has elements of format '", array.format,
             "', expected '", py::format_descriptor<T>::format(), "'");
  return static_cast<const T*>(array.ptr);
}

inline std::int64_t num_rows_of(const py::buffer_info& array) {
  return array.ndim == 0 ? 0 : array.shape[0];
}

}  // namespace asap
