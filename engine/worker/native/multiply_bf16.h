// Products in bfloat16, with sums in float32. Included after dots.h, in the same namespace.
//
// Each sum adds the products of two inputs, or of four with matrices, in the order of the inputs, so a row's result is
// bit-identical for any number of rows. The instructions round as they do: those of ARM to odd, AVX-512's to nearest.
#pragma once

// Rows whose sums are in registers at a time, and vectors of a panel.
constexpr int kFewRows = 8;
constexpr int bf16_vectors(int rows) {
  if (kPaired == 2) return 16 / (rows <= 2 ? 2 : rows <= 4 ? 4 : 8);
  return 2 * kTileVectors;
}

// Multiplies rows [first, first + kRows) by vectors of a panel from `vector` on.
template <int kRows, int kVectors>
static inline void multiply_bf16_rows(const Block& block, int64_t first, int64_t vector) {
  f32v sums[kRows][kVectors];
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < kVectors; ++v)
      sums[row][v] = block.adds ? load<f32v>(sums_of_vector(block, first + row, vector + v)) : f32v{};
  for (int row = 0; row < kRows; row += kPaired)
    for (int v = 0; v < kVectors; ++v) pair_rows(sums[row][v], sums[row + kPaired - 1][v]);
  const char* ahead = block.ahead;
  for (int64_t step = 0; step < block.num_steps; ++step) {
    const char* weights = block.panel + step * kStepBytes + vector * (4 * kLanes);
    const char* x = block.tiles + step * kTileBytes + first * 64;
#pragma GCC unroll 4
    for (int line = 0; line < 16; line += kPaired) {
      if (vector == 0) prefetch_part(ahead, block.lines_ahead, line / kPaired, 16 / kPaired);
      i32v parts[kVectors][kPaired];
      for (int v = 0; v < kVectors; ++v)
        for (int half = 0; half < kPaired; ++half)
          parts[v][half] = load_weights(weights + line * kLineBytes + v * (4 * kLanes), half);
      for (int row = 0; row < kRows; row += kPaired) {
        const i32v inputs = load_bf16_of_rows(x + row * 64 + line * 4);
        for (int v = 0; v < kVectors; ++v)
          for (int half = 0; half < kPaired; ++half)
            sums[row + half][v] = add_bf16(sums[row + half][v], parts[v][half], inputs);
      }
    }
    ahead += block.lines_ahead * 64;
  }
  for (int row = 0; row < kRows; row += kPaired)
    for (int v = 0; v < kVectors; ++v) separate_rows(sums[row][v], sums[row + kPaired - 1][v]);
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < kVectors; ++v) store(sums_of_vector(block, first + row, vector + v), sums[row][v]);
}

// Multiplies `rows` rows, at most kRows, by both tiles of a panel.
template <int kRows>
static void multiply_bf16_up_to(const Block& block, int64_t first, int64_t rows) {
  if constexpr (kRows > 0) {
    if (rows <= kRows - kPaired) return multiply_bf16_up_to<kRows - kPaired>(block, first, rows);
    for (int64_t vector = 0; vector < 2 * kTileVectors; vector += bf16_vectors(kRows))
      multiply_bf16_rows<kRows, bf16_vectors(kRows)>(block, first, vector);
  }
}

static void multiply_bf16(const Block& block) {
  for (int64_t row = 0; row < block.rows; row += kFewRows)
    multiply_bf16_up_to<kFewRows>(block, row, block.rows - row < kFewRows ? block.rows - row : kFewRows);
}
