// Products of small numbers, added to sums. Included after vectors.h, in the same namespace. The header of the
// instruction set defines
//   add_pairs(sums, weights, inputs): adds those of pairs of 16 bits to sums of 32 bits.
//   add_fours(sums, weights, inputs): adds those of four bytes. If GLIMPSE_DOTS, to sums of 32 bits; on x86, and of
//     matrices, weights are any bytes without a sign. Else weights are from 0 to 15, and sums are `Fours`, which hold
//     those of eight calls; `total_of` makes sums of 32 bits of them.
// If GLIMPSE_DOTS is 2, an instruction multiplies two rows by two features: the header has its own functions for what
// is below. The sums of two rows and four features are then those of features 0 and 1, and those of 2 and 3, until
// `separate_rows`.
#pragma once

constexpr int kPaired = GLIMPSE_DOTS == 2 ? 2 : 1;  // lines of weights, and rows, that are multiplied at once

#if GLIMPSE_LANES == 4
#include "dots_neon.h"
#else
#include "dots_x86.h"
#endif

#if GLIMPSE_DOTS
using Fours = i32v;
static inline Fours begin_fours(i32v sums) { return sums; }
static inline i32v end_fours(i32v, Fours fours) { return fours; }
#else
static inline Fours begin_fours(i32v) { return Fours{}; }
static inline i32v end_fours(i32v sums, Fours fours) { return sums + total_of(fours); }
#endif

#if GLIMPSE_DOTS != 2

static inline i32v load_weights(const char* line, int /*half*/) { return load<i32v>(line); }
static inline i32v load_bytes_of_rows(const char* x) { return splat(load<int32_t>(x)); }
template <class V>
static inline void separate_rows(V&, V&) {}

#if GLIMPSE_BF16
static inline void pair_rows(f32v&, f32v&) {}
static inline i32v load_bf16_of_rows(const char* x) { return splat(load<int32_t>(x)); }
static inline f32v add_bf16(f32v sums, i32v weights, i32v inputs) { return add_bf16_pairs(sums, weights, inputs); }
#endif

// Pairs of weights 0 and 2, or 1 and 3, of each feature of a line. Weights in groups have no sign.
template <bool kGroups>
static inline i32v load_pairs(const char* line, bool odd) {
  const i32v weights = load<i32v>(line);
  if (kGroups)
    return reinterpret_cast<i32v>(odd ? reinterpret_cast<u16w>(weights) >> 8 : reinterpret_cast<u16w>(weights) & 0xff);
  const s16w pairs = reinterpret_cast<s16w>(weights);
  return reinterpret_cast<i32v>(odd ? pairs >> 8 : pairs << 8 >> 8);
}
static inline i32v load_pair_of_row(const char* x, int odd) { return splat(load<int32_t>(x + odd * 4)); }
static inline i32v total_of_halves(i32v even, i32v odd) { return even + odd; }

#endif

// Where the sums of a row and of a vector of a panel are, from the block's first or from others. Kernels add constants
// to one address of theirs: the block may have changed with each store, for what the compiler knows.
static inline constexpr int64_t place_of_sums(int64_t row, int64_t vector) {
  return row * 16 + vector / kTileVectors * 256 + vector % kTileVectors * kLanes;
}
