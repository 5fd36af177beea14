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

// Whether two panels are multiplied together: each input of a row is loaded once for both, as loads of 512 bits may
// take longer than products.
constexpr bool kPairsPanels = kLanes == 16;
constexpr int kVectorsOfPanel = 2 * kTileVectors, kPairedVectors = 2 * kVectorsOfPanel;
constexpr int kPairedRows = 6;  // whose sums with two panels are in registers at a time

static inline int64_t second_panel_bytes(const Block& block) {
  return block.second_panel ? block.second_panel - block.panel : 0;
}

// Vector `v` of the same line of one panel or of two, which are `second` bytes apart.
static inline const char* place_in_panels(const char* line, int64_t second, int v) {
  return line + (v < kVectorsOfPanel ? 0 : second) + v % kVectorsOfPanel * (4 * kLanes);
}

template <int kRows, class Multiply>
static inline void with_rows(int64_t rows, const Multiply& multiply) {
  if constexpr (kRows > 1)
    if (rows < kRows) return with_rows<kRows - 1>(rows, multiply);
  multiply(std::integral_constant<int, kRows>{});
}

// Calls multiply(number of rows, prefetches, first row) for a few rows at a time, in one pass over two panels.
template <class Multiply>
static inline void multiply_pair(const Block& block, const Multiply& multiply) {
  multiply_few_at_a_time<kPairedRows, 1>(
      block, [](int64_t) { return 1; },
      [&](Prefetches& prefetches, int64_t first, int64_t rows) {
        with_rows<kPairedRows>(rows, [&](auto count) { multiply(count, prefetches, first); });
      });
}
