// What a processor level gives attention: the kernels that work on one tile of queries and one range of keys.
//
// Everything is transposed, so that queries lie in vector lanes: scores are [keys][columns], outputs
// [value_dim][columns]. A column is one query head of one token. Maxima and sums over keys are then plain vector
// operations, and keys (as rows) and values (as columns, `values` below) enter the matrix units as they lie in memory.
#pragma once

#include <cstdint>

namespace glimpse {

using bf16 = std::uint16_t;

constexpr int kBlockKeys = 32;      // keys of one step of the matrix units
constexpr int kRangeBlocks = 8;     // the most blocks between two rescalings
constexpr int kRangeKeys = kBlockKeys * kRangeBlocks;
constexpr int kMaxColumns = 32;     // of a tile; a tile has 16 or 32
constexpr int kMaxHeadDim = 256;

struct HeadShape {
  int query_dim;  // of queries and keys: a multiple of 32, or of 16 below the AMX level
  int value_dim;  // a multiple of 16
  float scale;    // of the scores, times log2(e)
};

// Queries as the matrix units want them: pairs of dimensions side by side.
struct alignas(64) QueryTile {
  bf16 packed[kMaxHeadDim * kMaxColumns];  // [query_dim / 2][columns][2]
  int limits[kMaxColumns];                 // how many keys of its sequence a column sees
  int columns;
};

// Keys `first` to `first + num_keys` of a sequence.
struct KeyRange {
  const bf16* keys[kRangeBlocks];    // [32][query_dim] each
  const bf16* values[kRangeBlocks];  // [value_dim][32] each, a row every `value_stride` numbers
  long value_stride;
  int first;
  int num_keys;
};

// Softmax-weighted sum of values over some keys, not yet divided: out · exp2(max) is the sum, sum · exp2(max) its
// weights. Two over different keys can be added, see `fold`.
struct alignas(64) Partial {
  float max[kMaxColumns];
  float sum[kMaxColumns];
  float out[kMaxHeadDim * kMaxColumns];  // [value_dim][columns]
};

// Scratch of one thread.
struct alignas(64) Workspace {
  float scores[kRangeKeys * kMaxColumns];
  bf16 weights[kRangeKeys * kMaxColumns];  // [keys / 2][columns][2]
};

struct AttentionKernels {
  void (*enter)();  // in each thread before the others, and `leave` after them
  void (*leave)();
  // Column i is rows[i][0 .. head_dim), or zeros where rows[i] is null; dimensions up to query_dim are filled with 0.
  void (*pack_queries)(const bf16* const* rows, int head_dim, int query_dim, QueryTile& tile);
  // [32][head_dim], a key every `stride` numbers, to [32][query_dim] and [head_dim][32]; missing keys become zeros.
  void (*pack_keys)(const bf16* keys, long stride, int num_keys, int head_dim, int query_dim, bf16* packed);
  void (*pack_values)(const bf16* values, long stride, int num_keys, int head_dim, bf16* packed);
  // A tile against a range; every value in the range's last block must be finite, hidden ones too.
  void (*attend)(const HeadShape& shape, const QueryTile& tile, const KeyRange& range, Workspace& workspace,
                 Partial& partial);
  // into += from
  void (*fold)(int value_dim, int columns, const Partial& from, Partial& into);
  // Divides by the sums and writes column i to rows[i], unless that is null.
  void (*finish)(int value_dim, int columns, const Partial& partial, bf16* const* rows);
};

extern const AttentionKernels kAttentionAvx2;
extern const AttentionKernels kAttentionAvx512;
extern const AttentionKernels kAttentionAmx;

}  // namespace glimpse
