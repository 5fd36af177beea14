// What a level's compilation offers to linear.cpp.
#pragma once

#include <cstdint>

#include "types.h"

namespace glimpse {

// Up to 16 rows times one panel; with matrix units and bfloat16 up to 32.
struct Block {
  const char* tiles;         // of the rows: those of the first 16 rows; with planes those of the high plane
  const char* second_tiles;  // of the next 16 rows, or the low plane; null: none
  const char* panel;
  bool adds;                 // to sums that are there
  int64_t num_steps;
  int64_t rows;
  int64_t first_row;
  int64_t index;             // of the panel
  const char* ahead;         // what to fetch into the cache meanwhile
  int64_t lines_ahead;       // cache lines of it for each step
  bool planes;               // the tiles are int8
  int64_t low_offset;        // with planes: from a high sum to its low one, in numbers
  const float* row_scale;    // with planes: of this block's rows
  float* sums;               // [2 row tiles][2 column tiles][16][16]; int32 with planes
};

// Where results go: exactly one of `tiles` (the input of another matrix), `wide` and `narrow` is set.
struct Output {
  void* tiles;
  int64_t num_tiles;         // of a row of tiles
  float* wide;               // [rows, width]
  bf16* narrow;              // [rows, width]
  const bf16* residual;      // [rows, width], added; null: none
  int32_t activation;
};

constexpr int64_t kSumsBytes = 4 * kTileBytes;  // of a block's sums

// A block whose sums are complete, to be made results row by row.
struct Finishing {
  const Weight& weight;
  const Output& output;
  const Block* block;        // null: none
  int64_t row;               // of it: the next one
};

struct Kernels {
  bool matrix_units;  // blocks may have 32 rows; int8 weights want int8 activations
  void (*lay_out_row)(const bf16* x, int64_t count, const Norm* norm, bf16* tile_row, int64_t num_tiles);
  float (*split_row)(const bf16* tile_row, int64_t num_steps, int8_t* high, int8_t* low);
  // Readies the processor's state for blocks of so many rows in a tile; `end` gives it back. Null: nothing to ready.
  void (*begin)(int64_t tile_rows);
  void (*end)();
  void (*multiply)(const Block& block, bool int8);
  // Likewise, and meanwhile finishes another: matrix units leave the others time for it.
  void (*multiply_beside)(const Block& block, bool int8, Finishing& finishing);
  void (*finish)(Finishing& finishing);
};

extern const Kernels kAvx2Kernels, kAvx512Kernels, kAmxKernels;

}  // namespace glimpse
