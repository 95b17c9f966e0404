// For the golden test: the struct the kernels read, against the fields of asap_ray/layout.py.
#include <string_view>

#include "asap/layout.hpp"

extern "C" {

// Which int64 of the struct the kernels read is the field of this name, or -1.
std::int64_t asap_layout_place(const char* name) {
  asap::Layout layout{};
  auto* values = reinterpret_cast<std::int64_t*>(&layout);
  for (std::size_t n = 0; n < std::size(asap::kLayoutFields); ++n) {
    values[n] = static_cast<std::int64_t>(n);
  }
  for (const auto& field : asap::kLayoutFields) {
    if (std::string_view(field.name) == name) return layout.*field.value;
  }
  return -1;
}
}
