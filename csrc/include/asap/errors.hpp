// What can go wrong, with the values in the text. bindings/ turns each into its asap_ray.errors
// class.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace asap {

// A message is larger than its slot; nothing was written.
struct Overflow : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A header in a shared buffer contradicts the layout; nothing was computed from it.
struct CorruptMessage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A wait reached its deadline.
struct PeerTimeout : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The instance is stopping.
struct Closed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Its arguments, written one after the other.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace asap

// The caller's mistake: std::invalid_argument (ValueError in Python) with the parts as its text.
#define ASAP_CHECK(condition, ...)                                          \
  do {                                                                      \
    if (!(condition)) throw std::invalid_argument(asap::text(__VA_ARGS__)); \
  } while (false)
