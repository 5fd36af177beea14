// Products of int8 planes and int8 weights. Included after dots.h, in the same namespace.
//
// The instruction multiplies unsigned by signed bytes, so 128 is added to the weights. The sums begin with what that
// adds to them: -128 times the sum of the row's inputs. They are exact, so the order of additions is of no matter.
#pragma once

constexpr int kPlanesRows = GLIMPSE_AVX512 ? 4 : 3;   // rows whose sums are in registers at a time
constexpr int kPlanesTiles = GLIMPSE_AVX512 ? 2 : 1;  // tiles of a panel at a time
constexpr int kPlanesVectors = kPlanesTiles * kTileVectors;

template <int kRows>
static inline void multiply_planes(const Block& block, int64_t first, int64_t tile) {
  i32v sums[2][kRows][kPlanesVectors];
  int32_t* places[2] = {reinterpret_cast<int32_t*>(block.sums),
                        reinterpret_cast<int32_t*>(block.sums) + block.low_offset};
  const auto place = [&](int plane, int row, int v) {
    return places[plane] + (first + row) * 16 + (tile + v / kTileVectors) * 256 + v % kTileVectors * kLanes;
  };
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 16
    for (int v = 0; v < kPlanesVectors; ++v) {
      const PlanesRow& planes = block.planes[first + row];
      sums[0][row][v] = block.adds ? load<i32v>(place(0, row, v)) : splat(-128 * planes.high_sum);
      sums[1][row][v] = block.adds ? load<i32v>(place(1, row, v)) : splat(-128 * planes.low_sum);
    }
  const char* high = block.tiles + first * 64;
  const char* low = block.second_tiles + first * 64;
  const char* ahead = block.ahead;
  for (int64_t step = 0; step < block.num_steps; ++step, high += kTileBytes, low += kTileBytes) {
    const char* weights = block.panel + step * kStepBytes + tile * kTileBytes;
    if (tile == 0) {
      for (int64_t i = 0; i < block.lines_ahead; ++i) __builtin_prefetch(ahead + i * 64);
      ahead += block.lines_ahead * 64;
    }
#pragma GCC unroll 4
    for (int line = 0; line < 16; ++line) {
      i32v weight[kPlanesVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kPlanesVectors; ++v)
        weight[v] = load<i32v>(weights + line * 64 + v / kTileVectors * kTileBytes + v % kTileVectors * (4 * kLanes)) ^
                    static_cast<int32_t>(0x80808080);
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        i32v high_inputs = splat(load<int32_t>(high + row * 64 + line * 4));
        i32v low_inputs = splat(load<int32_t>(low + row * 64 + line * 4));
#pragma GCC unroll 16
        for (int v = 0; v < kPlanesVectors; ++v) {
          sums[0][row][v] = add_dots(sums[0][row][v], weight[v], high_inputs);
          sums[1][row][v] = add_dots(sums[1][row][v], weight[v], low_inputs);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 16
    for (int v = 0; v < kPlanesVectors; ++v)
#pragma GCC unroll 16
      for (int plane = 0; plane < 2; ++plane) store(place(plane, row, v), sums[plane][row][v]);
}

// Multiplies `rows` rows, at most kRows, by both tiles of a panel.
template <int kRows>
static void multiply_planes_up_to(const Block& block, int64_t first, int64_t rows) {
  if constexpr (kRows > 0) {
    if (rows < kRows) return multiply_planes_up_to<kRows - 1>(block, first, rows);
    for (int64_t tile = 0; tile < 2; tile += kPlanesTiles) multiply_planes<kRows>(block, first, tile);
  }
}

static void multiply_int8(const Block& block) {
  for (int64_t row = 0; row < block.rows; row += kPlanesRows)
    multiply_planes_up_to<kPlanesRows>(block, row, block.rows - row < kPlanesRows ? block.rows - row : kPlanesRows);
}
