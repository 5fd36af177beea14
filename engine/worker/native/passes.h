// The passes of a product over a block's panel, and what they prefetch. Included after vectors.h, in the same
// namespace.
#pragma once

// What a kernel prefetches in each step of its passes over a block's panel.
struct Prefetches {
  const char* ahead;
  int64_t lines;    // cache lines
  bool in_windows;  // `side_by_side`

  // Every `parts`th line, from `part` on: all at once would take the buffers that loads need. Inlined, because the
  // compiler removes calls of functions that only prefetch.
  __attribute__((always_inline)) void prefetch_part(int64_t part, int64_t parts) const {
    if (!in_windows) {
      for (int64_t i = part; i < lines; i += parts) prefetch_to_l2(ahead + i * 64);
      return;
    }
    const char* first = side_by_side(ahead);
    for (int64_t i = part; i < lines; i += parts)
      __builtin_prefetch(first + i % kWindowPages * kPageBytes + i / kWindowPages * 64);
  }
  void end_step() { ahead += lines * 64; }
};

// Multiplies a few rows at a time, at most kRows and evenly: 16 rows are 6, 5 and 5 of them rather than 6, 6 and 4.
// kPairs rows stay together. Each few rows take a number of passes over the panel, and all passes together prefetch
// what the block is to prefetch: memory would else rest while all but the first compute.
template <int kRows, int kPairs, class Passes, class Multiply>
static inline void multiply_few_at_a_time(const Block& block, Passes passes, Multiply multiply) {
  int64_t parts = ceil_div(block.rows, kRows);
  Prefetches prefetches{block.ahead, block.lines_ahead, block.ahead_in_windows};
  if (prefetches.lines) prefetches.lines = ceil_div(prefetches.lines, parts * passes(ceil_div(block.rows, parts)));
  for (int64_t row = 0; row < block.rows; --parts) {
    const int64_t even = ceil_div(ceil_div(block.rows - row, parts), kPairs) * kPairs;
    const int64_t rows = even < block.rows - row ? even : block.rows - row;
    multiply(prefetches, row, rows);
    row += rows;
  }
}
