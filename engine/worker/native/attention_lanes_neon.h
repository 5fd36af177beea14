// Vectors of 4 float32 lanes in NEON, and squares of 16-bit numbers.
//
// To be included inside an anonymous namespace.

#include "transpose_neon.h"

struct Quad {
  using Vector = float32x4_t;
  static constexpr int kLanes = 4;

  static Vector splat(float value) { return vdupq_n_f32(value); }
  static Vector load(const float* from) { return vld1q_f32(from); }
  static void store(float* to, Vector value) { vst1q_f32(to, value); }
  static Vector fma(Vector a, Vector b, Vector c) { return vfmaq_f32(c, a, b); }
  static Vector fms(Vector a, Vector b, Vector c) { return vfmaq_f32(vnegq_f32(c), a, b); }
  static Vector max(Vector a, Vector b) { return vmaxq_f32(a, b); }  // NaN if one of them is NaN

  static Vector widen(const float* from) { return load(from); }
  static Vector widen(const bf16* from) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16)); }

  static void narrow(Vector value, float* to) { store(to, value); }

  // Rounds to nearest, ties to even. NaN stays NaN.
  static void narrow(Vector value, bf16* to) {
    const uint32x4_t bits = vreinterpretq_u32_f32(value);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t chosen = vbslq_u32(vceqq_f32(value, value), rounded, vdupq_n_u32(0x7fc00000));
    vst1_u16(to, vshrn_n_u32(chosen, 16));
  }

  // 2^n from a float whose lowest nine bits are n + 127 >= 0; 0 if they are 0.
  static Vector power_from_low_bits(Vector value) {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(value), 23));
  }

  // Infinity minus infinity is NaN, so the origin is 0 if all keys were masked.
  static Vector finite_or_zero(Vector max) { return vbslq_f32(vceqq_f32(max, splat(-INFINITY)), splat(0.0f), max); }

  // Loads the lanes whose limit exceeds `key`; the others become -inf.
  static Vector load_visible(const float* from, const int* limits, int key) {
    const uint32x4_t seen = vcgtq_s32(vld1q_s32(limits), vdupq_n_s32(key));
    return vbslq_f32(seen, load(from), splat(-INFINITY));
  }
};

using Base = Quad;

inline float32x4_t row_of_square(float) { return vdupq_n_f32(0.0f); }
inline uint16x4_t row_of_square(bf16) { return vdup_n_u16(0); }

// Transposes 4 rows of 4 16-bit elements.
inline void transpose(uint16x4_t rows[4]) {
  const uint32x2_t even01 = vreinterpret_u32_u16(vtrn1_u16(rows[0], rows[1]));
  const uint32x2_t odd01 = vreinterpret_u32_u16(vtrn2_u16(rows[0], rows[1]));
  const uint32x2_t even23 = vreinterpret_u32_u16(vtrn1_u16(rows[2], rows[3]));
  const uint32x2_t odd23 = vreinterpret_u32_u16(vtrn2_u16(rows[2], rows[3]));
  rows[0] = vreinterpret_u16_u32(vtrn1_u32(even01, even23));
  rows[1] = vreinterpret_u16_u32(vtrn1_u32(odd01, odd23));
  rows[2] = vreinterpret_u16_u32(vtrn2_u32(even01, even23));
  rows[3] = vreinterpret_u16_u32(vtrn2_u32(odd01, odd23));
}
