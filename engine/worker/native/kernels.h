// The interface between linear.cpp and the kernels of each instruction set level.
#pragma once

#include <cstdint>
#include <type_traits>

#include "types.h"

namespace glimpse {

struct Range {
  int64_t begin, end;
};

// What the int8 planes of a row stand for: a value is (128 · high + low) · scale.
struct PlanesRow {
  float scale;
  int32_t high_sum, low_sum;  // of all inputs
};

// What the integers of a row and a group of inputs stand for: a value times the scale.
struct GroupRow {
  float scale;
  float minus_sum;  // of the group's values, times the scale, with its sign changed
};

// How activations are quantized: all inputs of a group have one scale.
struct Groups {
  int64_t num_inputs;    // of a row of tiles
  int64_t size;          // inputs of a group; the last group may have fewer
  int32_t most;          // largest magnitude of a value: 127, or 16383 for weights of 8 bits
  bool wide;             // values are stored in int16, or in two planes of int8 tiles; else in int8
  const int32_t* order;  // [num_inputs]: input i of the groups is the row's input order[i]; null: i
  int64_t tile_inputs;   // of the tiles of int8 for matrix units; 0: tiles of 32 inputs, those of 15 bits in int16
  int64_t low_offset;    // in tiles for matrix units: from 8 bits of a value of 15 to the lower 7, in bytes
  int64_t row_bytes;     // from a row of a tile of values to the next one
};

constexpr int64_t kGroupSteps = kMostGroupInputs / 64;  // steps of int8 weights that multiply a group of activations

// A product of up to 16 rows with one panel; up to 32 rows with matrix units and one plane of activations.
struct Block {
  const char* tiles;         // activations: the first 16 rows, or the high plane
  const char* second_tiles;  // the next 16 rows, or the low plane; null: none
  const char* panel;         // weights of the block's steps, or what an `Unpack` made of them
  const char* second_panel;  // likewise, of the next panel, which is multiplied with the first; null: none
  bool unpacked;
  bool adds;  // whether to add to the existing sums
  int64_t num_steps;
  int64_t rows;
  int64_t first_row;
  int64_t index;                  // index of the panel
  const char* ahead;              // what to prefetch meanwhile
  int64_t lines_ahead;            // cache lines to prefetch in each step
  bool ahead_to_l2;               // matrix units: to prefetch to the L2 cache only
  int64_t ahead_apart;            // matrix units: bytes from there to as many other lines; 0: none
  bool ahead_in_windows;          // prefetches lines `side_by_side`
  const PlanesRow* planes;        // rows of the block, if the tiles are int8 planes; else null
  const GroupRow* groups;         // [groups][16] rows of the block, if the tiles are integers in groups; else null
  const GroupRow* second_groups;  // of the second tiles; null: they are a plane, or none
  int64_t tile_inputs;            // inputs of a row of a tile of integers for matrix units
  int64_t first_step;
  int64_t low_offset;  // with planes: offset from a high sum to its low sum, in elements
  float* sums;   // [2 row tiles][2 column tiles][16][16]; int32 with planes; of two panels [4 column tiles][16][16]
  float* added;  // [rows][32]: what adapters add
  uint32_t added_rows;  // bit i: something is added to row i
};

// Destination of results: exactly one of `tiles` (the input of another product), `wide` and `narrow` is set.
struct Output {
  void* tiles;
  int64_t num_tiles;           // tiles in a row of tiles
  float* wide;                 // [rows, width]
  bf16* narrow;                // [rows, width]
  const bf16* residual;        // [rows, width], added; null: none
  const float* wide_residual;  // likewise, in float32
  int32_t activation;
};

// Weights of a window are prefetched a line of each of its pages in turn, not a page after the other. A processor that
// follows each page by itself then has more lines underway than the prefetches of one thread.
constexpr int64_t kPageBytes = 4096, kWindowPages = 8, kWindowBytes = kWindowPages * kPageBytes;

// The line to prefetch instead of one of a window.
inline const char* side_by_side(const char* line) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(line), index = at % kWindowBytes / 64;
  return line - at % kWindowBytes + index % kWindowPages * kPageBytes + index / kWindowPages * 64;
}

constexpr int64_t kSumsBytes = 4 * kTileBytes;  // size of a block's sums

constexpr int64_t kWholeRow = 64;  // a row, in the parts that `Finishing` counts

// Blocks whose sums are complete and whose epilogue runs row by row.
struct Finishing {
  const Weight& weight;
  const Output& output;
  const Block* block;  // the next one; null: none
  const Block* end;    // the one after the last
  int64_t row;         // next row of the block
  int64_t pace;        // parts of rows to finish in each step of another block's product
  int64_t due;         // those that are not finished yet
};

// Blocks that are finished evenly over a number of steps.
inline void begin_finishing(Finishing& finishing, const Block* blocks, int64_t count, int64_t num_steps) {
  finishing.block = blocks;
  finishing.end = blocks + count;
  finishing.row = finishing.due = 0;
  finishing.pace = ceil_div(count * blocks->rows * kWholeRow, num_steps);
}

// A part of what an adapter adds to a linear: consecutive column tiles that read the same ranks. A panel has column
// tiles 2 · index and 2 · index + 1; of a gated weight, all tiles of gates come first. declarations.py reads its fields
// here.
struct LowRankPart {
  // [num_tiles][num_ranks][16] in float32, [num_tiles][num_ranks / 2][16][2] in bfloat16; padded with zeros.
  const void* up;
  int64_t first_rank, num_ranks;  // an even number of ranks
  int64_t first_tile, num_tiles;
};

// What an adapter adds to a linear. Its numbers have the type of activations. declarations.py reads its fields here.
struct LowRank {
  const void* down;  // [num_ranks / 4][tiles of inputs][4][32], padded with zeros: of all parts
  int64_t num_ranks;
  const LowRankPart* parts;
  int64_t num_parts;  // 0: nothing
};

constexpr int kBlockRanks = 4;  // ranks of `down` that are stored, and multiplied, together
constexpr int kMostAdaptedRows = 4;

// Rows of a row tile that have one adapter.
struct AdaptedBlock {
  int64_t rows;
  const void* x[kMostAdaptedRows];  // rows of tiles
  float* sums[kMostAdaptedRows];    // what is added to each row in the first panel
  int64_t panel_numbers;            // from there to the next panel
  void* inner;                      // [rows][most_ranks], of the type of tiles
  int64_t most_ranks;
};

struct LowRankKernels {
  // inner = down · x, for blocks [begin, end) of ranks; prefetches as many bytes ahead.
  void (*shrink)(const AdaptedBlock& block, const LowRank& adapter, int64_t num_tiles, int64_t begin, int64_t end,
                 int64_t ahead_bytes);
  // sums = up · inner, for `places` of panels whose column tiles, `tiles_of_panel` of each, are `tile` and those after
  // it. Null: sums = 0.
  void (*expand)(const AdaptedBlock& block, const LowRankPart* part, int64_t tile, Range places,
                 int64_t tiles_of_panel);
};

using Unpack = void (*)(const char* panel, int64_t num_lines, void* unpacked);

struct Kernels {
  bool matrix_units;      // blocks may have 32 rows, and others are finished meanwhile
  bool multiplies_bytes;  // weights of 8 bits in groups by activations of 8 bits
  int64_t byte_inputs;    // of a row of a tile of bytes, except for matrix units
  int64_t element_bytes;  // size of an activation in tiles: 2 (bfloat16) or 4 (float32)
  int64_t direct_rows;    // up to this number of rows, a panel is not unpacked
  int64_t streamed_rows;  // up to this number of rows, `multiply` reads a panel once, from its first byte to its last
  bool pairs_panels;      // `multiply` takes two panels that are unpacked, or of bytes with dot products
  void (*lay_out_row)(const bf16* x, int64_t count, const Norm* norm, void* tile_row, int64_t num_tiles);
  // Null: the tiles are bfloat16.
  void (*lay_out_float_row)(const float* x, int64_t count, const Norm* norm, void* tile_row, int64_t num_tiles);
  // Splits one row of tiles into two int8 planes. Null without matrix units.
  PlanesRow (*split_row)(const void* tile_row, int64_t num_steps, int8_t* high, int8_t* low);
  // Quantizes consecutive rows of a row of tiles, each group by itself. A tile has 16 rows of 32 inputs; `rows` has 16
  // of each group.
  void (*quantize_rows)(const void* tile_row, int64_t num_rows, const Groups& groups, void* values, GroupRow* rows);
  // Configures tile registers for activations of `tile_rows` rows of `row_bytes` bytes; `end` releases them. Null:
  // nothing to configure.
  void (*begin)(int64_t tile_rows, int64_t row_bytes);
  void (*end)();
  // What unpacks lines of the weight's panels to twice as many bytes, which many rows are multiplied by in less time:
  // bfloat16 to float32, [inputs][32]; int4 to lines of four int8 inputs; int8 to pairs of 16 bits. Null: nothing does.
  Unpack (*unpacker)(const Weight& weight);
  // Null with matrix units.
  void (*multiply)(const Block& block, const Weight& weight);
  // Multiplies blocks of a panel and finishes others meanwhile, because matrix units leave the vector units idle. Each
  // block, if it is then complete, is finished while the next one is multiplied. Null: no such units.
  void (*multiply_and_finish)(const Block* blocks, int64_t count, bool are_complete, Finishing& finishing);
  void (*finish)(Finishing& finishing);
  int64_t adapted_rows;  // most rows of an `AdaptedBlock`
  LowRankKernels low_rank;
  LowRankKernels low_rank_float;  // of adapters in float32. Null: the tiles are bfloat16.
};

extern const Kernels kAvx2Kernels, kAvxVnniKernels, kAvx512Kernels, kAvx512VnniKernels, kAvx512Bf16Kernels, kAmxKernels,
    kNeonKernels, kNeonDotprodKernels, kNeonI8mmKernels, kNeonBf16Kernels;

}  // namespace glimpse
