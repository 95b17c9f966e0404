#include "asap/products.hpp"

#include <algorithm>
#include <numeric>

#include "crew.hpp"
#include "exponential.hpp"
#include "tiles.hpp"

namespace asap {
namespace {

constexpr std::int64_t kChunkFloats = 128 << 10;  // of rows that meet a panel: 512 KB stay in cache
constexpr std::int64_t kLeastTiles = 12;          // of a chunk: each reads the whole matrix

// Rows of a chunk, in blocks of a tile each; the last block may be lower.
struct Blocks {
  float* floats;
  std::int64_t num_rows;
  std::int64_t num_inputs;
};

// Call `visit(row, block, height, kernel)` for every block: its first row, where it lies, the
// height of its tile, a constant, and the rows in it.
template <int kRows, class Visit>
[[gnu::always_inline]] inline void for_blocks(const Blocks& x, Visit visit) {
  for (std::int64_t row = 0; row < x.num_rows; row += kRows) {
    float* block = x.floats + row * padded(x.num_inputs);
    const std::int64_t num_rows = std::min<std::int64_t>(kRows, x.num_rows - row);
    with_height<kRows>(num_rows, [&](auto height) __attribute__((always_inline)) {
      visit(row, block, height, num_rows);
    });
  }
}

template <class Kernels>
void fill(const Blocks& blocks, const float* x) {
  Kernels::run([&] [[gnu::always_inline]] {
    for_blocks<TileShape<Kernels>::kRows>(
        blocks, [&](std::int64_t row, float* block, auto height, std::int64_t num_rows)
                    __attribute__((always_inline)) {
                      fill_block(block, height, x + row * blocks.num_inputs, blocks.num_inputs,
                                 num_rows, blocks.num_inputs);
                    });
  });
}

// Every block times panels [begin, end); `store(panel, row, sums, height, num_rows)` takes a tile.
template <class Kernels, class Store>
void times_panels(const Blocks& x, const Panels& matrix, std::int64_t begin, std::int64_t end,
                  Store store) {
  using Shape = TileShape<Kernels>;
  const std::int64_t panel_floats = matrix.num_inputs * kPanel;
  const std::int64_t num_tiles = num_panels(x.num_rows, Shape::kRows);
  // The next panel is read from memory meanwhile: each tile fetches its part.
  const std::int64_t ahead_lines = num_panels(kPanel, num_tiles);
  const std::int64_t ahead_floats = ahead_lines * padded(matrix.num_inputs);
  Kernels::run([&] [[gnu::always_inline]] {
    for (std::int64_t p = begin; p < end; ++p) {
      const float* panel = matrix.values + p * panel_floats;
      Ahead ahead{panel + panel_floats, p + 1 < end ? ahead_lines : 0};
      for_blocks<Shape::kRows>(x, [&](std::int64_t row, float* block, auto height,
                                      std::int64_t num_rows) __attribute__((always_inline)) {
        alignas(kLineBytes) float sums[height][kPanel];
        tile<Shape::kLanes, height>(sums, block, panel, matrix.num_inputs, ahead);
        ahead.floats += ahead_floats;
        store(p, row, sums, height, num_rows);
      });
    }
  });
}

template <class Kernels>
void times_matrix(float* out, const Blocks& x, const Panels& matrix, const Member& member) {
  const std::int64_t width = matrix.num_outputs;
  const std::int64_t count = num_panels(width, kPanel);
  times_panels<Kernels>(x, matrix, member.first_of(count), member.end_of(count),
                        [&](std::int64_t p, std::int64_t row, const auto& sums, auto,
                            std::int64_t num_rows) __attribute__((always_inline)) {
                          const std::int64_t columns = std::min(kPanel, width - p * kPanel);
                          for (std::int64_t r = 0; r < num_rows; ++r) {
                            std::copy_n(sums[r], columns, out + (row + r) * width + p * kPanel);
                          }
                        });
}

template <class Kernels>
void gate_and_up(const Blocks& middle, const Blocks& x, const Panels& gate_up,
                 const Member& member) {
  const std::int64_t width = gate_up.num_outputs;
  const std::int64_t count = num_panels(width, kHalfPanel);
  times_panels<Kernels>(x, gate_up, member.first_of(count), member.end_of(count),
                        [&](std::int64_t p, std::int64_t row, const auto& sums, auto height,
                            std::int64_t) __attribute__((always_inline)) {
                          float* block = middle.floats + row * padded(width);
                          for (std::int64_t r = 0; r < height; ++r) {
                            float* to = block + place_in_block(height, r, p * kHalfPanel);
                            for (std::int64_t c = 0; c < kHalfPanel; ++c) {
                              to[c] = silu(sums[r][c]) * sums[r][kHalfPanel + c];
                            }
                          }
                        });
}

// How many rows are done at a time, and memory for so many.
template <class Kernels>
std::int64_t chunk_of(std::int64_t num_rows, std::int64_t num_inputs) {
  constexpr std::int64_t kRows = TileShape<Kernels>::kRows;
  const std::int64_t fitting = kChunkFloats / padded(num_inputs) / kRows;
  return std::min(std::max(kLeastTiles, fitting), num_panels(num_rows, kRows)) * kRows;
}

}  // namespace

void multiply(float* out, const float* x, const Panels& matrix, std::int64_t num_rows,
              int num_threads) {
  static thread_local Scratch scratch;
  const std::int64_t width = matrix.num_inputs;
  with_kernels([&]<class Kernels>(Kernels) {
    const std::int64_t chunk = chunk_of<Kernels>(num_rows, width);
    float* room = scratch.room_for(chunk * padded(width));
    together(2 * num_rows * width * matrix.num_outputs, num_threads, [&](const Member& member) {
      for (std::int64_t row = 0; row < num_rows; row += chunk) {
        const Blocks blocks{room, std::min(chunk, num_rows - row), width};
        if (member.leads()) fill<Kernels>(blocks, x + row * width);
        member.meet();
        times_matrix<Kernels>(out + row * matrix.num_outputs, blocks, matrix, member);
        member.meet();
      }
    });
  });
}

void multiply_swiglu(float* out, const float* x, std::span<const std::int32_t> num_rows_E,
                     const Panels& gate_up, const Panels& down, int num_threads) {
  static thread_local Scratch rows_scratch, middle_scratch;
  const std::int64_t width = gate_up.num_inputs, middle_width = down.num_inputs;
  const std::int64_t gate_up_floats = num_panels(middle_width, kHalfPanel) * kPanel * width;
  const std::int64_t down_floats = num_panels(down.num_outputs, kPanel) * kPanel * middle_width;
  const std::int64_t num_rows = std::reduce(num_rows_E.begin(), num_rows_E.end(), std::int64_t{0});
  with_kernels([&]<class Kernels>(Kernels) {
    const std::int64_t chunk = chunk_of<Kernels>(num_rows, std::max(width, middle_width));
    float* rows_room = rows_scratch.room_for(chunk * padded(width));
    float* middle_room = middle_scratch.room_for(chunk * padded(middle_width));
    together(6 * num_rows * width * middle_width, num_threads, [&](const Member& member) {
      std::int64_t row = 0;
      Panels own_gate_up = gate_up, own_down = down;
      for (const std::int32_t expert_rows : num_rows_E) {
        for (const std::int64_t end = row + expert_rows; row < end;) {
          const std::int64_t count = std::min(chunk, end - row);
          const Blocks rows{rows_room, count, width}, middle{middle_room, count, middle_width};
          if (member.leads()) fill<Kernels>(rows, x + row * width);
          member.meet();
          gate_and_up<Kernels>(middle, rows, own_gate_up, member);
          member.meet();
          times_matrix<Kernels>(out + row * down.num_outputs, middle, own_down, member);
          row += count;
        }
        own_gate_up.values += gate_up_floats;
        own_down.values += down_floats;
      }
    });
  });
}

}  // namespace asap
