// The parts of the submodule `ascend`, and what they share: names of types, rows of a caller.
#pragma once

#include <memory>
#include <string>

#include "../ascend/host/attention_comm.hpp"
#include "arrays.hpp"

namespace asap::ascend {

using BufferPtr = std::shared_ptr<SharedBuffer>;

void bind_attention(py::module_& m);
void bind_moe(py::module_& m);

RowType row_type_named(const std::string& name);
Combine combine_named(const std::string& name);

// Rows of a caller: float32, or uint16 standing for the 16-bit type that travels.
void* rows_at(const py::buffer_info& array, const char* name, std::int64_t num_rows,
              std::int64_t hidden, RowType row_type);

}  // namespace asap::ascend
