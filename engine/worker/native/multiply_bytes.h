// Products of weights of 4 or 8 bits in groups and activations that are quantized to int8 by groups. Included after
// dots.h, in the same namespace.
//
// A group's sums are exact: Σ value · x, with values from 0 to 15, or to 255, and Σ x. They are then multiplied by the
// group's scale and minimum and added in order in float32, so a row's result is bit-identical for any number of rows,
// and at every level.
#pragma once

constexpr int kGroupRows = GLIMPSE_LANES == 16 || GLIMPSE_DOTS ? 4 : 2;  // rows whose sums are in registers at a time
constexpr int64_t kBlockLines = 4;                                       // of 32 inputs of int4 weights
constexpr bool kMultipliesBytes = GLIMPSE_LANES != 4 && GLIMPSE_DOTS;    // whether products of 8 bits are exact

// Whether the weight's activations are stored in bytes.
static inline bool reads_bytes(const Weight& weight) {
  return is_int4(weight) || (kMultipliesBytes && weight.byte_inputs);
}

// Adds the products of a block of 32 inputs.
template <int kBits, int kRows, int kGroupVectors>
static inline __attribute__((always_inline)) void add_block(const char* weights, const char* x,
                                                            i32v (&sums)[kRows][kGroupVectors]) {
  constexpr int32_t kNibbles = 0x0f0f0f0f;
  constexpr int kParts = 8 / kBits;  // of the bytes of a line: nibbles of inputs 16 apart
  Fours partial[kRows][kGroupVectors];
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < kGroupVectors; ++v) partial[row][v] = begin_fours(sums[row][v]);
#pragma GCC unroll 1  // else the compiler loads several lines ahead, and spills sums
  for (int line = 0; line < kBlockLines * kBits / 4; ++line) {
    i32v parts[kParts][kGroupVectors];
    for (int v = 0; v < kGroupVectors; ++v) {
      const i32v bytes = load<i32v>(weights + line * kLineBytes + v * (4 * kLanes));
      for (int part = 0; part < kParts; ++part)
        parts[part][v] = kBits == 8 ? bytes : (part ? bytes >> 4 : bytes) & kNibbles;
    }
    for (int row = 0; row < kRows; ++row) {
      const char* inputs = x + row * kTileInputs + line * 4;
      i32v splats[kParts];
      for (int part = 0; part < kParts; ++part) splats[part] = splat(load<int32_t>(inputs + part * (kTileInputs / 2)));
      for (int v = 0; v < kGroupVectors; ++v)
        for (int part = 0; part < kParts; ++part)
          partial[row][v] = add_fours(partial[row][v], parts[part][v], splats[part]);
    }
  }
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < kGroupVectors; ++v) sums[row][v] = end_fours(sums[row][v], partial[row][v]);
}

template <int kBits, int kRows, int kGroupTiles>
static inline void multiply_groups(const Block& block, const Weight& weight, int64_t first, int64_t tile) {
  constexpr int kGroupVectors = kGroupTiles * kTileVectors;
  constexpr int64_t kBlockBytes = kTileInputs * kPanelWidth * kBits / 8;  // 32 inputs of a panel
  const int64_t num_blocks = weight.group_size / kTileInputs;
  int64_t feature = (block.index * num_steps(weight) + block.first_step) * kPanelWidth + tile * 16;
  const GroupNumbers numbers(weight);
  const char* weights = block.panel + tile * 64;
  const char* x = block.tiles + first * kTileInputs;
  const GroupRow* groups = block.groups + first;
  const char* ahead = block.ahead;
  const auto place = [&](int row, int v) {
    return block.sums + (first + row) * 16 + (tile + v / kTileVectors) * 256 + v % kTileVectors * kLanes;
  };
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < kGroupVectors; ++v)
      if (!block.adds) store(place(row, v), f32v{});
  for (int64_t step = 0; step < block.num_steps; ++step) {
    i32v sums[kRows][kGroupVectors]{};
    for (int64_t i = 0; i < num_blocks; ++i, weights += kBlockBytes, x += kTileRows * kTileInputs) {
      if (tile == 0) prefetch_part(ahead, block.lines_ahead, i, num_blocks);
      add_block<kBits, kRows, kGroupVectors>(weights, x, sums);
    }
    ahead += block.lines_ahead * 64;
    for (int v = 0; v < kGroupVectors; ++v) {
      const f32v scales = numbers.scales(feature + v * kLanes), minima = numbers.minima(feature + v * kLanes);
      for (int row = 0; row < kRows; ++row)  // added in memory, since registers are needed for the next group
        store(place(row, v), add_group(load<f32v>(place(row, v)), sums[row][v], scales, minima, groups[row]));
    }
    feature += kPanelWidth;
    groups += kTileRows;
  }
}

// Multiplies `rows` rows, at most kRows, by both tiles of a panel.
template <int kBits, int kRows>
static void multiply_groups_up_to(const Block& block, const Weight& weight, int64_t first, int64_t rows) {
  if constexpr (kRows > 0) {
    if (rows < kRows) return multiply_groups_up_to<kBits, kRows - 1>(block, weight, first, rows);
    constexpr int kGroupTiles = GLIMPSE_LANES == 16 || kRows == 1 ? 2 : 1;  // tiles of a panel at a time
    for (int64_t tile = 0; tile < 2; tile += kGroupTiles)
      multiply_groups<kBits, kRows, kGroupTiles>(block, weight, first, tile);
  }
}

template <int kBits>
static void multiply_bits(const Block& block, const Weight& weight) {
  for (int64_t row = 0; row < block.rows; row += kGroupRows)
    multiply_groups_up_to<kBits, kGroupRows>(block, weight, row,
                                             block.rows - row < kGroupRows ? block.rows - row : kGroupRows);
}

static void multiply_bytes(const Block& block, const Weight& weight) {
  if (is_int4(weight)) return multiply_bits<4>(block, weight);
  if constexpr (kMultipliesBytes) multiply_bits<8>(block, weight);
}
