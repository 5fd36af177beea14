// Squares of floats in NEON. To be included inside an anonymous namespace.
#pragma once

constexpr int kSide = 4;  // rows of a square, and floats of a row
using SquareRow = float32x4_t;

inline SquareRow load_side(const float* from) { return vld1q_f32(from); }
inline void store_side(float* to, SquareRow row) { vst1q_f32(to, row); }

// Transposes 4 rows of 4 floats.
inline void transpose(float32x4_t rows[4]) {
  const float32x4_t even01 = vtrn1q_f32(rows[0], rows[1]), odd01 = vtrn2q_f32(rows[0], rows[1]);
  const float32x4_t even23 = vtrn1q_f32(rows[2], rows[3]), odd23 = vtrn2q_f32(rows[2], rows[3]);
  rows[0] = vcombine_f32(vget_low_f32(even01), vget_low_f32(even23));
  rows[1] = vcombine_f32(vget_low_f32(odd01), vget_low_f32(odd23));
  rows[2] = vcombine_f32(vget_high_f32(even01), vget_high_f32(even23));
  rows[3] = vcombine_f32(vget_high_f32(odd01), vget_high_f32(odd23));
}
