// Products of weights of 8 bits, int8 or in groups, and activations of 15 bits, or of 8 where bytes cannot be
// multiplied. Included after dots.h, in the same namespace.
//
// Four weights of a feature lie in 32 bits. The even and the odd ones are widened to pairs of 16 bits, which are
// multiplied by pairs of activations in the same order (see `quantize_row`). The sum of a group of activations is
// exact: Σ value · x. Such sums are then scaled and added in order in float32, so a row's result is bit-identical for
// any number of rows, and at every level that has these kernels.
#pragma once

// Rows whose sums are in registers at a time, and of them rows with both tiles of a panel at a time.
constexpr int kInt8Rows = kLanes == 16 ? 8 : kLanes == 8 ? 6 : 5;
constexpr int kInt8RowsOfPanel = kLanes == 16 ? 8 : 1;

// Pairs of weights 0 and 2, or 1 and 3, of each feature of a line. Weights in groups have no sign.
template <bool kGroups>
static inline i32v widen_pairs(i32v line, bool odd) {
  if (kGroups)
    return reinterpret_cast<i32v>(odd ? reinterpret_cast<u16w>(line) >> 8 : reinterpret_cast<u16w>(line) & 0xff);
  const s16w pairs = reinterpret_cast<s16w>(line);
  return reinterpret_cast<i32v>(odd ? pairs >> 8 : pairs << 8 >> 8);
}

// Sums of each row and vector: products of few rows would wait for each other.
constexpr int num_chains(int rows) { return rows <= 2 ? 2 : 1; }

// Adds the products of some lines of weights.
template <int kRows, int kTiles, bool kGroups>
static inline __attribute__((always_inline)) void add_lines(
    int64_t lines, const char* weights, const char* x, i32v (&sums)[num_chains(kRows)][kRows][kTiles * kTileVectors]) {
#pragma GCC unroll 1  // else the compiler loads several lines ahead, and spills sums
  for (int64_t line = 0; line < lines; ++line, weights += kLineBytes, x += 8) {
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      i32v weight[kTiles * kTileVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kTiles * kTileVectors; ++v)
        weight[v] = widen_pairs<kGroups>(load<i32v>(weights + v * (4 * kLanes)), odd);
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        const i32v inputs = splat(load<int32_t>(x + row * (2 * kTileInputs) + odd * 4));
#pragma GCC unroll 16
        for (int v = 0; v < kTiles * kTileVectors; ++v) {
          i32v& sum = sums[odd % num_chains(kRows)][row][v];
          sum = add_pairs(sum, weight[v], inputs);
        }
      }
    }
  }
}

// Multiplies rows [first, first + kRows) by kTiles tiles of a panel.
template <int kRows, int kTiles, bool kGroups>
static inline void multiply_int8_rows(const Block& block, const Weight& weight, int64_t first, int64_t tile) {
  constexpr int64_t kSteps = kGroups ? 1 : kGroupSteps;
  const int64_t inputs_of_step = kGroups ? weight.group_size : 64;
  const int64_t inputs = kGroups ? inputs_of_block(weight) : kTileInputs, lines = inputs / 4;  // multiplied at a time
  const GroupNumbers numbers(weight);
  int64_t feature = (block.index * num_steps(weight) + block.first_step) * kPanelWidth + tile * 16;
  const char* weights = block.panel + tile * 64;
  const char* x = block.tiles + first * (2 * kTileInputs);
  int64_t input = block.first_step * inputs_of_step % kTileInputs;  // from the first tile of activations on
  const char* ahead = block.ahead;
  const GroupRow* groups = block.groups + first;
  const auto place = [&](int row, int v) {
    return block.sums + (first + row) * 16 + (tile + v / kTileVectors) * 256 + v % kTileVectors * kLanes;
  };
  for (int64_t step = 0; step < block.num_steps; groups += kTileRows) {
    i32v sums[num_chains(kRows)][kRows][kTiles * kTileVectors]{};
    const int64_t end = step + kSteps < block.num_steps ? step + kSteps : block.num_steps;
    const bool adds = block.adds || step > 0;
    for (; step < end; ++step) {
      if (tile == 0) {
        for (int64_t i = 0; i < block.lines_ahead; ++i) prefetch_to_l2(ahead + i * 64);
        ahead += block.lines_ahead * 64;
      }
#pragma GCC unroll 1
      for (int64_t i = 0; i < inputs_of_step; i += inputs, input += inputs) {
        add_lines<kRows, kTiles, kGroups>(lines, weights, x + 2 * place_of(input), sums);
        weights += lines * kLineBytes;
      }
    }
#pragma GCC unroll 16
    for (int v = 0; v < kTiles * kTileVectors; ++v) {
      const f32v scales = kGroups ? numbers.scales(feature + v * kLanes) : splat(1.0f);
      const f32v minima = kGroups ? numbers.minima(feature + v * kLanes) : f32v{};
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        const f32v before = adds ? load<f32v>(place(row, v)) : f32v{};
        i32v sum = sums[0][row][v];
        if (num_chains(kRows) == 2) sum += sums[num_chains(kRows) - 1][row][v];
        store(place(row, v), kGroups
                                 ? add_group(before, sum, scales, minima, groups[row])
                                 : multiply_add(__builtin_convertvector(sum, f32v), splat(groups[row].scale), before));
      }
    }
    feature += kPanelWidth;
  }
}

// Multiplies `rows` rows, at most kRows, by both tiles of a panel.
template <int kRows, bool kGroups>
static void multiply_int8_up_to(const Block& block, const Weight& weight, int64_t first, int64_t rows) {
  if constexpr (kRows > 0) {
    if (rows < kRows) return multiply_int8_up_to<kRows - 1, kGroups>(block, weight, first, rows);
    if constexpr (kRows <= kInt8RowsOfPanel) return multiply_int8_rows<kRows, 2, kGroups>(block, weight, first, 0);
    multiply_int8_rows<kRows, 1, kGroups>(block, weight, first, 0);
    multiply_int8_rows<kRows, 1, kGroups>(block, weight, first, 1);
  }
}

// Divides the rows evenly: 16 rows are 6, 5 and 5 of them rather than 6, 6 and 4.
template <bool kGroups>
static void multiply_int8(const Block& block, const Weight& weight) {
  for (int64_t row = 0, parts = ceil_div(block.rows, kInt8Rows); row < block.rows; --parts) {
    const int64_t rows = ceil_div(block.rows - row, parts);
    multiply_int8_up_to<kInt8Rows, kGroups>(block, weight, row, rows);
    row += rows;
  }
}
