// What can go wrong, with the values in the text. bindings/ turns each into its asap_ray.errors
// class.
#pragma once

#include <concepts>
#include <stdexcept>
#include <string>
#include <string_view>

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

// How a value reads in a message; others join by an overload in this namespace.
inline void append(std::string& out, std::string_view part) { out += part; }
inline void append(std::string& out, std::integral auto part) { out += std::to_string(part); }

// Its arguments, written one after the other.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::string out;
  (append(out, parts), ...);
  return out;
}

}  // namespace asap

// The caller's mistake: std::invalid_argument (ValueError in Python) with the parts as its text.
#define ASAP_CHECK(condition, ...)                                          \
  do {                                                                      \
    if (!(condition)) throw std::invalid_argument(asap::text(__VA_ARGS__)); \
  } while (false)
