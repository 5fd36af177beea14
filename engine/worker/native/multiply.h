// Products in float32, for processors that do not multiply bfloat16. Included after groups.h, in the same namespace.
//
// Each sum is a chain of fused multiplications and additions in the order of the inputs, so a row's result is
// bit-identical for any number of rows. A panel is widened in registers for few rows, and once for all rows otherwise.
// Loops over sums are unrolled by name: GCC 11 would else keep the sums in memory.
#pragma once

// Rows whose sums are in registers at a time, and of them rows with both tiles of a panel at a time.
constexpr int kFewRows = kLanes == 16 ? 8 : kLanes == 8 ? 6 : 5;
constexpr int kRowsOfPanel = kLanes == 16 ? 8 : kLanes == 8 ? 1 : 2;
// Up to so many rows, widening weights for each few rows takes less time than widening them once, in memory.
constexpr int kDirectRows = kLanes == 16 ? 16 : kLanes == 8 ? 8 : kFewRows;
constexpr int kStreamedRows = kLanes == 16 ? kFewRows : 1;
constexpr int kLineInputs = 2;  // inputs in a line of a tile

// The weights of one input of 16 / kTileVectors features, widened from a line of a tile.
static inline f32v widen_input(i32v line, int place) {
  return reinterpret_cast<f32v>(place ? line & static_cast<int32_t>(0xffff0000) : line << 16);
}

// Loads or stores the sums of rows [first, first + kRows) and of kTiles tiles from `tile` on.
template <int kRows, int kTiles, bool kStore>
static inline void move_sums(const Block& block, int64_t first, int64_t tile,
                             f32v (&sums)[kRows][kTiles * kTileVectors]) {
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 16
    for (int i = 0; i < kTiles * kTileVectors; ++i) {
      float* place = block.sums + (first + row) * 16 + (tile + i / kTileVectors) * 256 + i % kTileVectors * kLanes;
      if (kStore) store(place, sums[row][i]);
      else sums[row][i] = block.adds ? load<f32v>(place) : f32v{};
    }
}

// Multiplies rows [first, first + kRows) by kTiles tiles of a panel as it is stored.
template <int kRows, int kTiles>
static inline void multiply_packed(const Block& block, Prefetches& prefetches, int64_t first, int64_t tile) {
  f32v sums[kRows][kTiles * kTileVectors];
  move_sums<kRows, kTiles, false>(block, first, tile, sums);
  const float* x = reinterpret_cast<const float*>(block.tiles) + first * kTileInputs;
  for (int64_t step = 0; step < block.num_steps; ++step, x += kTileElements) {
    const char* weights = block.panel + step * kStepBytes + tile * 64;
    for (int i = 0; i < kTileInputs / kLineInputs; ++i) {
      const char* line = weights + i * kLineBytes;
      prefetches.prefetch_part(i, kTileInputs / kLineInputs);
      for (int place = 0; place < kLineInputs; ++place) {
        f32v weight[kTiles * kTileVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kTiles * kTileVectors; ++v)
          weight[v] = widen_input(load<i32v>(line + v * (4 * kLanes)), place);
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) {
          f32v input = splat(x[row * kTileInputs + i * kLineInputs + place]);
#pragma GCC unroll 16
          for (int v = 0; v < kTiles * kTileVectors; ++v) sums[row][v] += weight[v] * input;
        }
      }
    }
    prefetches.end_step();
  }
  move_sums<kRows, kTiles, true>(block, first, tile, sums);
}

// Multiplies rows [first, first + kRows) by kTiles tiles of a panel in float32, as it is stored or from `unpack_panel`.
template <int kRows, int kTiles>
static inline void multiply_unpacked(const Block& block, Prefetches& prefetches, int64_t first, int64_t tile) {
  f32v sums[kRows][kTiles * kTileVectors];
  move_sums<kRows, kTiles, false>(block, first, tile, sums);
  const float* x = reinterpret_cast<const float*>(block.tiles) + first * kTileInputs;
  const char* weights = block.panel + tile * 64;
  const int64_t second = second_panel_bytes(block);
  for (int64_t step = 0; step < block.num_steps; ++step, x += kTileElements, weights += kFloatStepBytes) {
    prefetches.prefetch_part(0, 1);
    prefetches.end_step();
#pragma GCC unroll 8
    for (int i = 0; i < kTileInputs; ++i) {
      f32v weight[kTiles * kTileVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kTiles * kTileVectors; ++v)
        weight[v] = load<f32v>(place_in_panels(weights + i * kLineBytes, second, v));
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        f32v input = splat(x[row * kTileInputs + i]);
#pragma GCC unroll 16
        for (int v = 0; v < kTiles * kTileVectors; ++v) sums[row][v] += weight[v] * input;
      }
    }
  }
  move_sums<kRows, kTiles, true>(block, first, tile, sums);
}

template <int kRows, int kTiles, bool kUnpacked>
static inline void multiply_rows(const Block& block, Prefetches& prefetches, int64_t first, int64_t tile) {
  if constexpr (kUnpacked) multiply_unpacked<kRows, kTiles>(block, prefetches, first, tile);
  else multiply_packed<kRows, kTiles>(block, prefetches, first, tile);
}

// Multiplies `rows` rows, at most kRows, by both tiles of a panel.
template <int kRows, bool kUnpacked>
static void multiply_up_to(const Block& block, Prefetches& prefetches, int64_t first, int64_t rows) {
  if constexpr (kRows > 0) {
    if (rows < kRows) return multiply_up_to<kRows - 1, kUnpacked>(block, prefetches, first, rows);
    if constexpr (kRows <= kRowsOfPanel) return multiply_rows<kRows, 2, kUnpacked>(block, prefetches, first, 0);
    multiply_rows<kRows, 1, kUnpacked>(block, prefetches, first, 0);
    multiply_rows<kRows, 1, kUnpacked>(block, prefetches, first, 1);
  }
}

template <bool kUnpacked>
static void multiply_all(const Block& block) {
  if constexpr (kUnpacked && kPairsPanels)
    if (block.second_panel)
      return multiply_pair(block, [&](auto rows, Prefetches& prefetches, int64_t first) {
        multiply_unpacked<decltype(rows)::value, 4>(block, prefetches, first, 0);
      });
  multiply_few_at_a_time<kFewRows, 1>(
      block, [](int64_t rows) { return rows <= kRowsOfPanel ? 1 : 2; },
      [&](Prefetches& prefetches, int64_t first, int64_t rows) {
        multiply_up_to<kFewRows, kUnpacked>(block, prefetches, first, rows);
      });
}

static void unpack_panel(const char* panel, int64_t num_lines, void* memory) {
  float* unpacked = static_cast<float*>(memory);
  for (int64_t line = 0; line < num_lines; ++line, unpacked += kLineInputs * kPanelWidth) {
#pragma GCC unroll 16
    for (int v = 0; v < 2 * kTileVectors; ++v) {
      i32v weights = load<i32v>(panel + line * kLineBytes + v * (4 * kLanes));
      for (int place = 0; place < kLineInputs; ++place)
        store(unpacked + place * kPanelWidth + v * kLanes, widen_input(weights, place));
    }
  }
}

static Unpack floats_unpacker(const Weight& weight) { return is_float32(weight) ? nullptr : unpack_panel; }

static void multiply_floats(const Block& block, const Weight& weight) {
  if (block.unpacked || is_float32(weight)) multiply_all<true>(block);
  else multiply_all<false>(block);
}
