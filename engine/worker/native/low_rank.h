// What adapters add to linears (arXiv 2106.09685): up · down · x, for a few rows of one adapter. Included after
// finish.h, in the same namespace. A row's result is bit-identical for any number of rows.
#pragma once

constexpr int kAdaptedRows = kLanes == 16 ? 4 : 2;  // rows whose sums are in registers at a time

template <class W>
static inline f32v load_weights(const W* from) {
  return load_wide(from, kLanes);
}

// Dot products of 32 inputs of a row in tiles, added to lanes of sums.
template <class W>
static inline f32v add_products(f32v sums, const Element* x, const W* weights) {
#if GLIMPSE_BF16
  for (int i = 0; i < kTileInputs; i += 2 * kLanes)
    sums = add_bf16_pairs(sums, load<i32v>(x + i), load<i32v>(weights + i));
#else
  for (int i = 0; i < kTileInputs; i += kLanes)
    sums = multiply_add(load_element(x + i), load_weights(weights + i), sums);
#endif
  return sums;
}

[[maybe_unused]] static inline void store_wide(bf16* to, f32v value, int64_t count) { store_bf16(to, value, count); }
[[maybe_unused]] static inline void store_wide(float* to, f32v value, int64_t count) { store_f32(to, value, count); }

static inline Element* inner_of(const AdaptedBlock& block, int row) {
  return static_cast<Element*>(block.inner) + row * block.most_ranks;
}

template <class W, int kRows>
static inline void shrink_rows(const AdaptedBlock& block, const LowRank& adapter, int64_t num_tiles, int64_t begin,
                               int64_t end, int64_t ahead_bytes) {
  const W* weights = static_cast<const W*>(adapter.down) + begin * num_tiles * kBlockRanks * kTileInputs;
  for (int64_t index = begin; index < end; ++index) {
    f32v sums[kRows][kBlockRanks] = {};
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
#pragma GCC unroll 4
      for (int r = 0; r < kBlockRanks; ++r, weights += kTileInputs) {
        Prefetches{reinterpret_cast<const char*>(weights) + ahead_bytes, ahead_bytes ? int64_t{sizeof(W) / 2} : 0,
                   ahead_bytes == kWindowBytes}
            .prefetch_part(0, 1);
#pragma GCC unroll 4
        for (int row = 0; row < kRows; ++row)
          sums[row][r] =
              add_products(sums[row][r], static_cast<const Element*>(block.x[row]) + tile * kTileElements, weights);
      }
    }
    for (int row = 0; row < kRows; ++row) {
      f32v totals{};
      for (int r = 0; r < kBlockRanks; ++r) totals[r] = sum(sums[row][r]);
      store_wide(inner_of(block, row) + index * kBlockRanks, totals, kBlockRanks);
    }
  }
}

// Adds two ranks of kLanes outputs, vector `v` of a tile, to lanes of sums.
template <class W>
static inline f32v add_ranks(f32v sums, const W* weights, int v, const Element* inner) {
#if GLIMPSE_BF16
  return add_bf16_pairs(sums, load<i32v>(weights + 2 * v * kLanes), splat(load<int32_t>(inner)));
#else
  for (int place = 0; place < 2; ++place) {
    f32v up;
    if constexpr (sizeof(W) == 4) up = load<f32v>(weights + place * 16 + v * kLanes);
    else up = widen_input(load<i32v>(weights + 2 * v * kLanes), place);
    sums = multiply_add(splat(inner[place]), up, sums);
  }
  return sums;
#endif
}

// Reads consecutive tiles in their order, which is as fast as the memory is.
template <class W, int kRows>
static inline void expand_rows(const AdaptedBlock& block, const LowRankPart* part, int64_t tile, Range places,
                               int64_t tiles_of_panel) {
  const int64_t num_ranks = part ? part->num_ranks : 0, first_rank = part ? part->first_rank : 0;
  const W* weights = part ? static_cast<const W*>(part->up) + (tile - part->first_tile) * num_ranks * 16 : nullptr;
  const int64_t last = tiles_of_panel - 1;  // 0 or 1
  for (int64_t place = places.begin; place < places.end; ++place) {
    f32v sums[kRows][kTileVectors] = {};
    for (int64_t rank = 0; rank < num_ranks; rank += 2, weights += 32) {
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v)
#pragma GCC unroll 4
        for (int row = 0; row < kRows; ++row)
          sums[row][v] = add_ranks(sums[row][v], weights, v, inner_of(block, row) + first_rank + rank);
    }
    const int64_t offset = (place >> last) * block.panel_numbers + (place & last) * 16;
    for (int row = 0; row < kRows; ++row)
      for (int v = 0; v < kTileVectors; ++v) store(block.sums[row] + offset + v * kLanes, sums[row][v]);
  }
}

template <class W, int kRows = kAdaptedRows>
static void shrink(const AdaptedBlock& block, const LowRank& adapter, int64_t num_tiles, int64_t begin, int64_t end,
                   int64_t ahead_bytes) {
  if constexpr (kRows > 1)
    if (block.rows < kRows) return shrink<W, kRows - 1>(block, adapter, num_tiles, begin, end, ahead_bytes);
  shrink_rows<W, kRows>(block, adapter, num_tiles, begin, end, ahead_bytes);
}

template <class W, int kRows = kAdaptedRows>
static void expand(const AdaptedBlock& block, const LowRankPart* part, int64_t tile, Range places,
                   int64_t tiles_of_panel) {
  if constexpr (kRows > 1)
    if (block.rows < kRows) return expand<W, kRows - 1>(block, part, tile, places, tiles_of_panel);
  expand_rows<W, kRows>(block, part, tile, places, tiles_of_panel);
}
