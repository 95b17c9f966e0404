#pragma once

#include <pybind11/pybind11.h>

namespace asap {

// The passes of asap/stages.hpp.
void bind_stages(pybind11::module_& m);

}  // namespace asap
