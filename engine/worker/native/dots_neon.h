// Dot products of small integers in NEON, with those of ARMv8.2 or without. Included by dots.h.
#pragma once

// Each weight of a pair times its input: there are no dot products of 16 bits. The compiler narrows the weights once
// for all rows.
static inline i32v add_pairs(i32v sums, i32v weights, i32v inputs) {
  const int32x4_t pairs = reinterpret_cast<int32x4_t>(weights);
  const int16x4_t pair = vget_low_s16(reinterpret_cast<int16x8_t>(inputs));
  const int32x4_t first = vmlal_lane_s16(reinterpret_cast<int32x4_t>(sums), vmovn_s32(pairs), pair, 0);
  return reinterpret_cast<i32v>(vmlal_lane_s16(first, vshrn_n_s32(pairs, 16), pair, 1));
}

#if GLIMPSE_DOTS

static inline i32v add_fours(i32v sums, i32v weights, i32v inputs) {
  return reinterpret_cast<i32v>(vdotq_s32(reinterpret_cast<int32x4_t>(sums), reinterpret_cast<int8x16_t>(weights),
                                          reinterpret_cast<int8x16_t>(inputs)));
}

#else

// Sums of 16 bits, of each byte: eight products of up to 15 · 127 do not overflow.
struct Fours {
  int16x8_t low, high;
};

static inline Fours add_fours(Fours sums, i32v weights, i32v inputs) {
  const int8x16_t left = reinterpret_cast<int8x16_t>(weights), right = reinterpret_cast<int8x16_t>(inputs);
  return {vmlal_s8(sums.low, vget_low_s8(left), vget_low_s8(right)), vmlal_high_s8(sums.high, left, right)};
}

static inline i32v total_of(Fours sums) {
  return reinterpret_cast<i32v>(vpaddq_s32(vpaddlq_s16(sums.low), vpaddlq_s16(sums.high)));
}

#endif
