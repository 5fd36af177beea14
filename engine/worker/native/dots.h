// Dot products of small integers, added to sums. Included after vectors.h, in the same namespace. The header of the
// instruction set defines
//   add_pairs(sums, weights, inputs): adds those of pairs of 16 bits to sums of 32 bits.
//   add_fours(sums, weights, inputs): adds those of four bytes. If GLIMPSE_DOTS, to sums of 32 bits; on x86 weights are
//     any bytes without a sign. Else weights are from 0 to 15, and sums are `Fours`, which hold those of eight calls;
//     `total_of` makes sums of 32 bits of them.
#pragma once

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
