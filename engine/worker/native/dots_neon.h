// Products of small integers in NEON: those of ARMv8, of ARMv8.2, or of matrices. Included by dots.h.
#pragma once

#if GLIMPSE_DOTS == 2

// Eight inputs of two features of a vector, 0 and 1 or 2 and 3, which two lines have.
static inline i32v load_weights(const char* line, int half) {
  const int32x4_t first = load<int32x4_t>(line), second = load<int32x4_t>(line + kLineBytes);
  return reinterpret_cast<i32v>(half ? vzip2q_s32(first, second) : vzip1q_s32(first, second));
}

// Eight inputs of two rows.
static inline i32v load_bytes_of_rows(const char* x) { return load<i32v>(x); }

// Sums of two features and two rows, or planes of a row: both of the first feature, then both of the second.
static inline i32v add_fours(i32v sums, i32v weights, i32v inputs) {
  return reinterpret_cast<i32v>(vusmmlaq_s32(reinterpret_cast<int32x4_t>(sums), reinterpret_cast<uint8x16_t>(weights),
                                             reinterpret_cast<int8x16_t>(inputs)));
}

// From sums of features 0 and 1, and of 2 and 3, to those of each row.
template <class V>
static inline void separate_rows(V& first, V& second) {
  const int32x4_t left = reinterpret_cast<int32x4_t>(first), right = reinterpret_cast<int32x4_t>(second);
  first = reinterpret_cast<V>(vuzp1q_s32(left, right));
  second = reinterpret_cast<V>(vuzp2q_s32(left, right));
}

#if GLIMPSE_BF16

// From sums of rows to those of features 0 and 1, and of 2 and 3.
static inline void pair_rows(f32v& first, f32v& second) {
  const float32x4_t left = reinterpret_cast<float32x4_t>(first), right = reinterpret_cast<float32x4_t>(second);
  first = reinterpret_cast<f32v>(vzip1q_f32(left, right));
  second = reinterpret_cast<f32v>(vzip2q_f32(left, right));
}

// Four inputs of two rows.
static inline i32v load_bf16_of_rows(const char* x) {
  return reinterpret_cast<i32v>(vcombine_s32(load<int32x2_t>(x), load<int32x2_t>(x + 2 * kTileInputs)));
}

static inline f32v add_bf16(f32v sums, i32v weights, i32v inputs) {
  return reinterpret_cast<f32v>(vbfmmlaq_f32(reinterpret_cast<float32x4_t>(sums),
                                             reinterpret_cast<bfloat16x8_t>(weights),
                                             reinterpret_cast<bfloat16x8_t>(inputs)));
}

#endif

// The planes of eight inputs, `quantize_rows` says which, are multiplied as rows are.
template <bool /*kGroups*/>
static inline i32v load_pairs(const char* line, int half) {
  return load_weights(line, half);
}
static inline i32v load_pair_of_row(const char* x, int /*half*/) { return load<i32v>(x); }

template <bool kGroups>
static inline i32v add_pairs(i32v sums, i32v weights, i32v inputs) {
  if (kGroups) return add_fours(sums, weights, inputs);
  return reinterpret_cast<i32v>(vmmlaq_s32(reinterpret_cast<int32x4_t>(sums), reinterpret_cast<int8x16_t>(weights),
                                           reinterpret_cast<int8x16_t>(inputs)));
}

static inline i32v total_of_halves(i32v first, i32v second) {
  separate_rows(first, second);
  return (first << 7) + second;
}

#else

// Each weight of a pair times its input: there are no dot products of 16 bits. The compiler narrows the weights once
// for all rows.
template <bool /*kGroups*/>
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

#endif
