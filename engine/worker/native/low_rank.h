// What adapters add to linears (arXiv 2106.09685): y += up · down · x, for a few rows of one adapter. Included after
// finish.h, in the same namespace.
#pragma once

constexpr int kBlockRows = kLanes == 16 ? 4 : 2;  // rows whose sums are in registers at a time
constexpr int kBlockRanks = 4;                    // ranks likewise

template <class W>
static inline f32v load_weights(const W* from) {
  return load_wide(from, kLanes);
}

// Dot products of 32 inputs of a row in tiles, added to lanes of sums.
template <class W>
static inline f32v add_products(f32v sums, const Element* x, const W* weights) {
#if GLIMPSE_BF16
  const auto left = reinterpret_cast<__m512bh>(_mm512_loadu_si512(x));
  const auto right = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weights));
  return reinterpret_cast<f32v>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sums), left, right));
#else
  for (int i = 0; i < kTileInputs; i += kLanes)
    sums = multiply_add(load_element(x + i), load_weights(weights + i), sums);
  return sums;
#endif
}

// inner[row][rank] = down[rank] · x[row], for kRanks ranks.
template <class W, int kRows, int kRanks>
static inline void shrink_ranks(const LowRankBlock& block, const W* down, int64_t rank) {
  f32v sums[kRows][kRanks] = {};
  const int64_t width = block.num_tiles * kTileInputs;
  const W* weights = down + rank * width;
  for (int64_t tile = 0; tile < block.num_tiles; ++tile, weights += kTileInputs) {
#pragma GCC unroll 4
    for (int r = 0; r < kRanks; ++r) {
      __builtin_prefetch(weights + (kRanks + r) * width);
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) {
        const Element* x = static_cast<const Element*>(block.x[row]) + tile * kTileElements;
        sums[row][r] = add_products(sums[row][r], x, weights + r * width);
      }
    }
  }
  for (int row = 0; row < kRows; ++row)
    for (int r = 0; r < kRanks; ++r) block.inner[row * block.num_ranks + rank + r] = sum(sums[row][r]);
}

template <class W, int kRows>
static void shrink_rows(const LowRankBlock& block, const W* down, int64_t rank, int64_t end) {
  for (; rank + kBlockRanks <= end; rank += kBlockRanks) shrink_ranks<W, kRows, kBlockRanks>(block, down, rank);
  for (; rank < end; ++rank) shrink_ranks<W, kRows, 1>(block, down, rank);
}

// y[row] += up · inner[row], for 32 outputs: up is [ranks of the part][32].
template <class T, int kRows>
static inline void expand_rows(const LowRankBlock& block, const LowRankPart& part, int64_t index) {
  constexpr int kVectors = kPanelWidth / kLanes;
  f32v sums[kRows][kVectors] = {};
  const T* weights = static_cast<const T*>(part.up) + index * part.num_ranks * kPanelWidth;
  for (int64_t rank = 0; rank < part.num_ranks; ++rank, weights += kPanelWidth) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const f32v up = load_weights(weights + v * kLanes);
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row)
        sums[row][v] =
            multiply_add(splat(block.inner[row * block.num_ranks + part.first_rank + rank]), up, sums[row][v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    const int64_t column = index * kPanelWidth + v * kLanes, count = part.num_outputs - column;
    for (int row = 0; row < kRows && count > 0; ++row) {
      T* y = static_cast<T*>(block.y[row]) + part.first_output + column;
      const f32v value = load_wide(y, count) + sums[row][v];
      if constexpr (sizeof(T) == 4) store_f32(y, value, count);
      else store_bf16(y, value, count);
    }
  }
}

// Computes ranks [begin, end) of `inner`, or adds outputs [begin, end) of a part, in blocks of 32.
template <class T, int kRows>
static void adapt_up_to(const LowRankBlock& block, const void* down, const LowRankPart* part, int64_t begin,
                        int64_t end) {
  if constexpr (kRows > 0) {
    if (block.rows < kRows) return adapt_up_to<T, kRows - 1>(block, down, part, begin, end);
    if (!part) return shrink_rows<T, kRows>(block, static_cast<const T*>(down), begin, end);
    for (int64_t index = begin; index < end; ++index) expand_rows<T, kRows>(block, *part, index);
  }
}

template <class T>
static void adapt(const LowRankBlock& block, const void* down, const LowRankPart* part, int64_t begin, int64_t end) {
  adapt_up_to<T, kBlockRows>(block, down, part, begin, end);
}

// activation(gates) · ups
template <class T>
static void combine(const T* gates, const T* ups, int64_t count, int32_t activation, T* y) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const f32v value = activated(load_wide(gates + i, count - i), activation) * load_wide(ups + i, count - i);
    if constexpr (sizeof(T) == 4) store_f32(y + i, value, count - i);
    else store_bf16(y + i, value, count - i);
  }
}
