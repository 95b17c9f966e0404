#pragma once

#include <pybind11/pybind11.h>

namespace asap {

// The mirrors and inboxes of asap/mirror.hpp.
void bind_mirrors(pybind11::module_& m);

}  // namespace asap
