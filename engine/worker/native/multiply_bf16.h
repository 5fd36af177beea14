// Products in bfloat16, with sums in float32. Included after dots.h, in the same namespace.
//
// Each sum adds the products of two inputs, or of four with matrices, in the order of the inputs, so a row's result is
// bit-identical for any number of rows. The instructions round as they do: those of ARM to odd, AVX-512's to nearest.
#pragma once

// Rows whose sums are in registers at a time, and vectors of a panel.
constexpr int kFewRows = 8, kDirectRows = kFewRows, kStreamedRows = kLanes == 16 ? kFewRows : 2;
constexpr int bf16_vectors(int rows) {
  if (kPaired == 2) return 16 / (rows <= 2 ? 2 : rows <= 4 ? 4 : 8);
  return 2 * kTileVectors;
}

// Loads or stores the sums of rows [first, first + kRows) and of vectors of a panel from `vector` on. In registers,
// those of paired rows are mixed.
template <int kRows, int kVectors, bool kStore>
static inline void move_bf16_sums(const Block& block, int64_t first, int64_t vector, f32v (&sums)[kRows][kVectors]) {
  float* const stored = block.sums + place_of_sums(first, vector);
#pragma GCC unroll 16
  for (int row = 0; row < kRows; row += kPaired)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      if (kStore) separate_rows(sums[row][v], sums[row + kPaired - 1][v]);
#pragma GCC unroll 2
      for (int half = 0; half < kPaired; ++half) {
        f32v& sum = sums[row + half][v];
        float* place = stored + place_of_sums(row + half, v);
        if (kStore) store(place, sum);
        else sum = block.adds ? load<f32v>(place) : f32v{};
      }
      if (!kStore) pair_rows(sums[row][v], sums[row + kPaired - 1][v]);
    }
}

// Multiplies rows [first, first + kRows) by vectors of a panel from `vector` on. Loops over sums are unrolled by name:
// GCC 12 would else take them through memory at both ends.
template <int kRows, int kVectors>
static inline void multiply_bf16_rows(const Block& block, Prefetches& prefetches, int64_t first, int64_t vector) {
  f32v sums[kRows][kVectors];
  move_bf16_sums<kRows, kVectors, false>(block, first, vector, sums);
  for (int64_t step = 0; step < block.num_steps; ++step) {
    const char* weights = block.panel + step * kStepBytes + vector * (4 * kLanes);
    const char* x = block.tiles + step * kTileBytes + first * 64;
    for (int line = 0; line < 16; line += kPaired) {
      prefetches.prefetch_part(line / kPaired, 16 / kPaired);
      i32v parts[kVectors][kPaired];
      for (int v = 0; v < kVectors; ++v)
        for (int half = 0; half < kPaired; ++half)
          parts[v][half] = load_weights(weights + line * kLineBytes + v * (4 * kLanes), half);
#pragma GCC unroll 16
      for (int row = 0; row < kRows; row += kPaired) {
        const i32v inputs = load_bf16_of_rows(x + row * 64 + line * 4);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 2
          for (int half = 0; half < kPaired; ++half)
            sums[row + half][v] = add_bf16(sums[row + half][v], parts[v][half], inputs);
      }
    }
    prefetches.end_step();
  }
  move_bf16_sums<kRows, kVectors, true>(block, first, vector, sums);
}

// Multiplies `rows` rows, at most kRows, by both tiles of a panel.
template <int kRows>
static void multiply_bf16_up_to(const Block& block, Prefetches& prefetches, int64_t first, int64_t rows) {
  if constexpr (kRows > 0) {
    if (rows <= kRows - kPaired) return multiply_bf16_up_to<kRows - kPaired>(block, prefetches, first, rows);
    for (int64_t vector = 0; vector < 2 * kTileVectors; vector += bf16_vectors(kRows))
      multiply_bf16_rows<kRows, bf16_vectors(kRows)>(block, prefetches, first, vector);
  }
}

static Unpack floats_unpacker(const Weight&) { return nullptr; }

static void multiply_floats(const Block& block, const Weight&) {
  multiply_few_at_a_time<kFewRows, kPaired>(
      block, [](int64_t rows) { return 2 * kTileVectors / bf16_vectors(rows); },
      [&](Prefetches& prefetches, int64_t first, int64_t rows) {
        multiply_bf16_up_to<kFewRows>(block, prefetches, first, rows);
      });
}
