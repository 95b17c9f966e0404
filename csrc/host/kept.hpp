// Keys and values of a head, laid out for tiles of queries.
#pragma once

#include <algorithm>
#include <cstdint>

#include "asap/attention.hpp"
#include "tiles.hpp"

namespace asap {

// One head of keys and values in panels: a panel of keys has 32 of them, [key_width][32]; one of
// values has 32 of their dimensions, [num_tokens][32].
struct Kept {
  Kept(float* room, const HeadVectors& key, const HeadVectors& value)
      : keys(room),
        values(room + num_panels(key.num_tokens, kPanel) * kPanel * key.width),
        num_tokens(key.num_tokens),
        key_width(key.width),
        value_width(value.width) {}

  static std::int64_t num_floats(const HeadVectors& key, const HeadVectors& value) {
    return num_panels(key.num_tokens, kPanel) * kPanel * key.width +
           num_panels(value.width, kPanel) * kPanel * key.num_tokens;
  }

  std::int64_t key_panels() const { return num_panels(num_tokens, kPanel); }
  std::int64_t value_panels() const { return num_panels(value_width, kPanel); }

  // Lay out the tokens of panels of keys [begin, end).
  void fill(const HeadVectors& key, const HeadVectors& value, std::int64_t head, std::int64_t begin,
            std::int64_t end) const {
    for (std::int64_t t = begin * kPanel; t < end * kPanel; ++t) {
      float* to = keys + t / kPanel * kPanel * key_width + t % kPanel;
      const bool is_there = t < num_tokens;
      const float* from = key.vector(head, is_there ? t : 0);
      for (std::int64_t d = 0; d < key_width; ++d) to[d * kPanel] = is_there ? from[d] : 0.0f;
    }
    for (std::int64_t p = 0; p < value_panels(); ++p) {
      const std::int64_t count = std::min(kPanel, value_width - p * kPanel);
      float* to = values + (p * num_tokens + begin * kPanel) * kPanel;
      for (std::int64_t t = begin * kPanel; t < std::min(end * kPanel, num_tokens); ++t) {
        std::copy_n(value.vector(head, t) + p * kPanel, count, to);
        std::fill(to + count, to + kPanel, 0.0f);
        to += kPanel;
      }
    }
  }

  float* keys;
  float* values;
  std::int64_t num_tokens;
  std::int64_t key_width;
  std::int64_t value_width;
};

}  // namespace asap
