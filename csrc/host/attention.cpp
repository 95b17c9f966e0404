#include "asap/attention.hpp"

#include <algorithm>
#include <cstring>

#include "crew.hpp"
#include "exponential.hpp"
#include "kept.hpp"
#include "tiles.hpp"

namespace asap {
namespace {

constexpr std::int64_t kKeyBlock = 256;  // keys a tile meets at a time: its scores stay in cache
constexpr std::int64_t kBandTiles = 4;   // tiles of each head that meet a block of keys in turn
constexpr std::int64_t kBandHeads = 8;   // heads of queries whose tiles do
constexpr float kHidden = -1e30f;        // the score of what comes later

// A few queries of one head, and what they have seen so far.
struct Tile {
  float* query;     // a block of the queries, scaled
  float* mixed;     // [rows][value panels * 32]: values, weighted by exponentials
  float* greatest;  // score of each row: exponentials are relative to it
  float* sum;       // of each row's exponentials
};

// Scores of a tile with keys [begin, end), as a block of its rows.
template <int kLanes, int kRows>
[[gnu::always_inline]] inline void score(float* scores, const Tile& queries, const Kept& kept,
                                         std::int64_t begin, std::int64_t end) {
  alignas(kLineBytes) float sums[kRows][kPanel];
  for (std::int64_t key = begin; key < end; key += kPanel, scores += kRows * kPanel) {
    tile<kLanes, kRows>(sums, queries.query, kept.keys + key * kept.key_width, kept.key_width,
                        Ahead{});
    for (int r = 0; r < kRows; ++r) {
      std::memcpy(scores + r * kHalfPanel, sums[r], kLineBytes);
      std::memcpy(scores + (kRows + r) * kHalfPanel, sums[r] + kHalfPanel, kLineBytes);
    }
  }
}

// Row r is token `position + r`.
template <int kRows>
[[gnu::always_inline]] inline void hide_later(float* scores, std::int64_t num_lines,
                                              std::int64_t begin, std::int64_t position) {
  for (std::int64_t line = 0; line < num_lines; ++line) {
    for (int r = 0; r < kRows; ++r, scores += kHalfPanel) {
      const auto num_seen = static_cast<std::int32_t>(
          std::clamp<std::int64_t>(position + r + 1 - begin - line * kHalfPanel, 0, kHalfPanel));
      for (std::int32_t c = 0; c < kHalfPanel; ++c) scores[c] = c < num_seen ? scores[c] : kHidden;
    }
  }
}

// Scores of one row, a line in every `step` floats, become exponentials relative to the greatest so
// far. Returns what everything summed so far is to be multiplied by.
[[gnu::always_inline]] inline float exponentiate(float* scores, std::int64_t num_lines,
                                                 std::int64_t step, float& greatest, float& sum) {
  float lanes[kHalfPanel];
  for (float& lane : lanes) lane = greatest;
  for (std::int64_t line = 0; line < num_lines; ++line) {
    const float* row = scores + line * step;
    for (std::int64_t c = 0; c < kHalfPanel; ++c) lanes[c] = lanes[c] > row[c] ? lanes[c] : row[c];
  }
  float now = lanes[0];
  for (const float lane : lanes) now = now > lane ? now : lane;
  const float decay = exp_of(greatest - now);
  float sums[kHalfPanel] = {};
  for (std::int64_t line = 0; line < num_lines; ++line) {
    float* row = scores + line * step;
    for (std::int64_t c = 0; c < kHalfPanel; ++c) {
      row[c] = exp_of(row[c] - now);
      sums[c] += row[c];
    }
  }
  sum *= decay;
  for (const float each : sums) sum += each;
  greatest = now;
  return decay;
}

// A tile of queries meets keys [begin, end). Row r is token `position + r`.
template <int kLanes, int kRows>
[[gnu::always_inline]] inline void meet(const Tile& queries, float* scores, const Kept& kept,
                                        std::int64_t begin, std::int64_t end,
                                        std::int64_t position) {
  score<kLanes, kRows>(scores, queries, kept, begin, end);
  const std::int64_t num_lines = 2 * num_panels(end - begin, kPanel);
  if (begin + num_lines * kHalfPanel > position + 1) {
    hide_later<kRows>(scores, num_lines, begin, position);
  }
  float decay[kRows];
  for (int r = 0; r < kRows; ++r) {
    decay[r] = exponentiate(scores + r * kHalfPanel, num_lines, kRows * kHalfPanel,
                            queries.greatest[r], queries.sum[r]);
  }
  const std::int64_t count = kept.value_panels();
  for (std::int64_t p = 0; p < count; ++p) {
    alignas(kLineBytes) float sums[kRows][kPanel];
    tile<kLanes, kRows>(sums, scores, kept.values + (p * kept.num_tokens + begin) * kPanel,
                        end - begin, Ahead{});
    for (int r = 0; r < kRows; ++r) {
      float* row = queries.mixed + (r * count + p) * kPanel;
      for (std::int64_t c = 0; c < kPanel; ++c) row[c] = row[c] * decay[r] + sums[r][c];
    }
  }
}

// Queries whose heads, [first_head, end_head), share one head of keys and values.
template <class Kernels>
class Group {
 public:
  static constexpr int kRows = TileShape<Kernels>::kRows;
  static constexpr std::int64_t kBand = kBandTiles * kRows;

  static std::int64_t tile_floats(std::int64_t key_width, std::int64_t value_width) {
    return kRows * (padded(key_width) + num_panels(value_width, kPanel) * kPanel) +
           2 * padded(kRows);
  }

  void attend(std::int64_t band_idx) const {
    Kernels::run([&] [[gnu::always_inline]] {
      band(band_idx * kBand, std::min((band_idx + 1) * kBand, query.num_tokens));
    });
  }

  float* out;
  const HeadVectors& query;
  const Kept& kept;
  std::int64_t first_head;
  std::int64_t end_head;
  float scale;
  float* scores;  // kRows * kKeyBlock
  float* tiles;   // kBandTiles tiles of each head

 private:
  [[gnu::always_inline]] inline void band(std::int64_t begin, std::int64_t end) const {
    const std::int64_t past = kept.num_tokens - query.num_tokens;
    for_tiles(begin, end,
              [&](const Tile& queries, std::int64_t token, std::int64_t head, auto height,
                  std::int64_t num_rows) __attribute__((always_inline)) {
                start(queries, token, head, height, num_rows);
              });
    for (std::int64_t key = 0; key < past + end; key += kKeyBlock) {
      for_tiles(begin, end,
                [&](const Tile& queries, std::int64_t token, std::int64_t, auto height,
                    std::int64_t num_rows) __attribute__((always_inline)) {
                  const std::int64_t position = past + token;
                  const std::int64_t seen = std::min(key + kKeyBlock, position + num_rows);
                  if (key < seen) {
                    meet<TileShape<Kernels>::kLanes, height>(queries, scores, kept, key, seen,
                                                             position);
                  }
                });
    }
    for_tiles(
        begin, end,
        [&](const Tile& queries, std::int64_t token, std::int64_t head, auto, std::int64_t num_rows)
            __attribute__((always_inline)) { finish(queries, token, head, num_rows); });
  }

  template <class Visit>
  [[gnu::always_inline]] inline void for_tiles(std::int64_t begin, std::int64_t end,
                                               Visit visit) const {
    const std::int64_t query_floats = kRows * padded(kept.key_width);
    const std::int64_t mixed_floats = kRows * kept.value_panels() * kPanel;
    float* room = tiles;
    for (std::int64_t token = begin; token < end; token += kRows) {
      const std::int64_t num_rows = std::min<std::int64_t>(kRows, end - token);
      for (std::int64_t head = first_head; head < end_head; ++head) {
        const Tile queries{room, room + query_floats, room + query_floats + mixed_floats,
                           room + query_floats + mixed_floats + padded(kRows)};
        room += tile_floats(kept.key_width, kept.value_width);
        with_height<kRows>(num_rows, [&](auto height) __attribute__((always_inline)) {
          visit(queries, token, head, height, num_rows);
        });
      }
    }
  }

  [[gnu::always_inline]] inline void start(const Tile& queries, std::int64_t token,
                                           std::int64_t head, std::int64_t height,
                                           std::int64_t num_rows) const {
    for (std::int64_t r = 0; r < height; ++r) {
      const float* from = query.vector(head, token + std::min(r, num_rows - 1));
      for (std::int64_t d = 0; d < query.width; ++d) {
        queries.query[place_in_block(height, r, d)] = from[d] * scale;
      }
    }
    std::fill_n(queries.mixed, height * kept.value_panels() * kPanel, 0.0f);
    std::fill_n(queries.greatest, height, kHidden);
    std::fill_n(queries.sum, height, 0.0f);
  }

  [[gnu::always_inline]] inline void finish(const Tile& queries, std::int64_t token,
                                            std::int64_t head, std::int64_t num_rows) const {
    const std::int64_t width = kept.value_width;
    for (std::int64_t r = 0; r < num_rows; ++r) {
      const float* row = queries.mixed + r * kept.value_panels() * kPanel;
      float* to = out + ((token + r) * query.num_heads + head) * width;
      const float share = 1.0f / queries.sum[r];
      for (std::int64_t d = 0; d < width; ++d) to[d] = row[d] * share;
    }
  }
};

// One call of `attend`. A few heads of keys and values are laid out at a time, by all members.
template <class Kernels>
class Call {
 public:
  void do_part(const Member& member) const {
    for (std::int64_t first = 0; first < key.num_heads; first += heads_at_once) {
      const std::int64_t end = std::min(first + heads_at_once, key.num_heads);
      lay_out(member, first, end);
      member.meet();
      attend_to(member, first, end);
      member.meet();  // before others lay out what they still read
    }
  }

  float* out;
  const HeadVectors& query;
  const HeadVectors& key;
  const HeadVectors& value;
  float scale;
  std::int64_t heads_at_once;
  float* room;  // for so many heads of keys and values

 private:
  using Part = Group<Kernels>;

  Kept kept_of(std::int64_t place) const {
    return {room + place * Kept::num_floats(key, value), key, value};
  }

  void lay_out(const Member& member, std::int64_t first, std::int64_t end) const {
    for (std::int64_t head = first; head < end; ++head) {
      const Kept kept = kept_of(head - first);
      const std::int64_t count = kept.key_panels();
      kept.fill(key, value, head, member.first_of(count), member.end_of(count));
    }
  }

  // Each piece, a band of the queries of a few heads, goes to one member; neighbours, which see
  // about as many keys, go to different ones.
  void attend_to(const Member& member, std::int64_t first, std::int64_t end) const {
    static thread_local Scratch scratch;
    const std::int64_t num_sharing = query.num_heads / key.num_heads;
    const std::int64_t band_heads = std::min(kBandHeads, num_sharing);
    const std::int64_t scores_floats = Part::kRows * kKeyBlock;
    float* scores = scratch.room_for(scores_floats + kBandTiles * band_heads *
                                                         Part::tile_floats(key.width, value.width));
    const std::int64_t num_bands = num_panels(query.num_tokens, Part::kBand);
    std::int64_t piece = 0;
    for (std::int64_t band = 0; band < num_bands; ++band) {
      for (std::int64_t begin = 0; begin < num_sharing; begin += band_heads) {
        for (std::int64_t head = first; head < end; ++head, ++piece) {
          if (piece % member.num_members != member.index) continue;
          const Kept kept = kept_of(head - first);
          const std::int64_t own = head * num_sharing;
          Part{out,
               query,
               kept,
               own + begin,
               own + std::min(begin + band_heads, num_sharing),
               scale,
               scores,
               scores + scores_floats}
              .attend(band);
        }
      }
    }
  }
};

}  // namespace

void attend(float* out, const HeadVectors& query, const HeadVectors& key, const HeadVectors& value,
            float scale, int num_threads) {
  const std::int64_t heads_at_once = std::clamp<std::int64_t>(num_threads, 1, key.num_heads);
  const std::int64_t operations =
      query.num_heads * query.num_tokens * key.num_tokens * (key.width + value.width);
  Scratch room;
  float* kept = room.room_for(heads_at_once * Kept::num_floats(key, value));
  with_kernels([&]<class Kernels>(Kernels) {
    const Call<Kernels> call{out, query, key, value, scale, heads_at_once, kept};
    together(operations, num_threads, [&](const Member& member) { call.do_part(member); });
  });
}

}  // namespace asap
