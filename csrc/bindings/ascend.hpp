#pragma once

#include <pybind11/pybind11.h>

namespace asap {

// The submodule `ascend`: the primitives and the super kernel on Ascend dies (csrc/ascend/host).
void bind_ascend(pybind11::module_& m);

}  // namespace asap
