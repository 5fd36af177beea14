// What a processor level gives attention: the kernels that work on one tile of queries and one range of keys.
//
// Everything is transposed, so that queries lie in vector lanes: scores are [keys][columns], outputs
// [value_dim][columns]. A column is one query head of one token. Maxima and sums over keys are then plain vector
// operations, and keys (as rows) and values (as columns, `values` below) enter the matrix units as they lie in memory.
#pragma once

#include <cmath>
#include <cstdint>

#include "types.h"

namespace glimpse {

constexpr int kBlockKeys = 32;   // keys per step of the matrix units
constexpr int kRangeBlocks = 8;  // blocks between two rescalings
constexpr int kRangeKeys = kBlockKeys * kRangeBlocks;
constexpr int kMaxColumns = 32;  // columns per tile: a multiple of the level's `column_step`
constexpr int kMaxHeadDim = 512;

struct HeadShape {
  int query_dim;  // of queries and keys: a multiple of 32, or of 16 below the AMX level; head_dim, padded with zeros
  int value_dim;  // a multiple of 16
  float scale;    // factor of the scores, including log2(e)
};

// Queries. For bf16 products, pairs of dimensions are adjacent; for float32 products, queries are widened.
struct alignas(64) QueryTile {
  union {
    bf16 packed[kMaxHeadDim * kMaxColumns];  // [query_dim / 2][columns][2]
    float wide[kMaxHeadDim * kMaxColumns];   // [query_dim][columns]
  };
  // Each column attends to the keys of its sequence from `starts` to before `limits`. Neither decreases.
  int limits[kMaxColumns];
  int starts[kMaxColumns];
  int columns;
  int num_queries;  // of the columns, the first ones; others are zeros
};

// Keys `first` to `first + num_keys` of a sequence, in bf16 or float.
template <class T>
struct KeyRange {
  const T* keys[kRangeBlocks];    // [32][query_dim] each
  const T* values[kRangeBlocks];  // [value_dim][32] each, with a row stride of `value_stride` elements
  long value_stride;
  int first;
  int num_keys;
  // [256], of keys and values that are integers; null: they are not. They scale scores and weights instead.
  const float* key_scales;
  const float* value_scales;
};

// Softmax-weighted sum of values over some keys, before the division: out · exp2(max) is the sum of weighted values,
// sum · exp2(max) the sum of weights. `merge` adds two partials over different keys.
struct alignas(64) Partial {
  float max[kMaxColumns];
  float sum[kMaxColumns];
  float out[kMaxHeadDim * kMaxColumns];  // [value_dim][columns]
};

// Scratch of one thread. For float32 products, weights replace the scores.
struct alignas(64) Workspace {
  float scores[kRangeKeys * kMaxColumns];
  union {
    bf16 weights[kRangeKeys * kMaxColumns];     // for bf16 products, [keys / 2][columns][2]
    float panel[kRangeKeys * kMaxColumns / 2];  // for float32 products, some keys or values, widened
  };
};

// What a product prefetches, a line of keys and one of values at a time: blocks lie apart in memory, so the processor
// does not foresee them, and it has buffers for few lines.
template <class T>
struct Ahead {
  const T *keys, *values;  // null: nothing
  long value_stride;       // as of `KeyRange`

  void prefetch() {
    if (!keys) return;
    __builtin_prefetch(keys, 0, 2);
    __builtin_prefetch(values, 0, 2);
    keys += 64 / sizeof(T);
    values += value_stride;
  }
};

// What the product with a range's block of keys prefetches: the next block of keys, and its own of values.
template <class T>
Ahead<T> ahead_of(const KeyRange<T>& range, int block, int num_blocks) {
  return {range.keys[block + 1 < num_blocks ? block + 1 : block], range.values[block], range.value_stride};
}

struct Visible {
  int by_all;   // keys of the range that all columns attend to
  int by_some;  // keys that at least one column attends to, and those before them
  int hidden;   // the first keys of the range, to which some columns do not attend since their windows start later
};

template <class T>
Visible visible_keys(const QueryTile& tile, const KeyRange<T>& range) {
  int least = range.num_keys, most = 0;
  for (int column = 0; column < tile.columns; ++column) {
    const int seen = tile.limits[column] - range.first;
    least = seen < least ? seen : least;
    most = seen > most ? seen : most;
  }
  most = most < range.num_keys ? most : range.num_keys;
  const int hidden = tile.starts[tile.columns - 1] - range.first;
  return {least > 0 ? least : 0, most, hidden <= 0 ? 0 : hidden < most ? hidden : most};
}

// Hides the scores [num_rows][columns] of keys before the columns' windows.
inline void hide_keys(const QueryTile& tile, int first_key, int num_rows, float* scores) {
  for (int row = 0; row < num_rows; ++row, scores += tile.columns) {
    for (int column = 0; column < tile.columns; ++column) {
      if (first_key + row < tile.starts[column]) scores[column] = -INFINITY;
    }
  }
}

// Kernels for queries, keys and values in bf16 or float.
template <class T>
struct AttentionKernels {
  int column_step;  // a tile's columns are a multiple of it: 4, 8 or 16
  void (*enter)();  // called in each thread before the other functions, and `leave` after them
  void (*leave)();
  // Column i is rows[i][0 .. head_dim), or zeros if rows[i] is null; dimensions up to query_dim are padded with zeros.
  void (*pack_queries)(const T* const* rows, int head_dim, int query_dim, QueryTile& tile);
  // From [32][head_dim] with a key stride of `stride` elements to [32][query_dim] and [head_dim][32]; missing keys
  // become zeros.
  void (*pack_keys)(const T* keys, long stride, int num_keys, int head_dim, int query_dim, T* packed);
  void (*pack_values)(const T* values, long stride, int num_keys, int head_dim, T* packed);
  // Attention of a tile to a range. All values in the range's last block must be finite, including masked ones.
  void (*attend)(const HeadShape& shape, const QueryTile& tile, const KeyRange<T>& range, Workspace& workspace,
                 Partial& partial);
  // Adds `from` to `into`.
  void (*merge)(int value_dim, int columns, const Partial& from, Partial& into);
  // Divides by the sums of weights and writes column i to rows[i], unless that is null.
  void (*finish)(int value_dim, int columns, const Partial& partial, T* const* rows);
};

extern const AttentionKernels<bf16> kAttentionAvx2, kAttentionAvx512, kAttentionAvx512Bf16, kAttentionAmx,
    kAttentionNeon;
extern const AttentionKernels<float> kAttentionAvx2Float, kAttentionAvx512Float, kAttentionNeonFloat;

}  // namespace glimpse
