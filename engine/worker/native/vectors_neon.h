// Operations on vectors in NEON. Included by vectors.h.
#pragma once

[[maybe_unused]] static inline f32v splat(float value) { return f32v{value, value, value, value}; }
[[maybe_unused]] static inline i32v splat(int32_t value) { return i32v{value, value, value, value}; }

// Unsigned bytes, widened.
[[maybe_unused]] static inline i32v load_bytes(const uint8_t* from) {
  const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(load<uint32_t>(from)));
  return reinterpret_cast<i32v>(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}

// a · b + c, rounded once.
[[maybe_unused]] static inline f32v multiply_add(f32v a, f32v b, f32v c) {
  return reinterpret_cast<f32v>(
      vfmaq_f32(reinterpret_cast<float32x4_t>(c), reinterpret_cast<float32x4_t>(a), reinterpret_cast<float32x4_t>(b)));
}

#if GLIMPSE_BF16
static inline u16v narrow(f32v value) {  // to nearest, ties to even
  return reinterpret_cast<u16v>(vcvt_bf16_f32(reinterpret_cast<float32x4_t>(value)));
}

// Adds the products of pairs of bfloat16. Sums are rounded to odd.
static inline f32v add_bf16_pairs(f32v sums, i32v left, i32v right) {
  return reinterpret_cast<f32v>(vbfdotq_f32(reinterpret_cast<float32x4_t>(sums), reinterpret_cast<bfloat16x8_t>(left),
                                            reinterpret_cast<bfloat16x8_t>(right)));
}
#endif

[[maybe_unused]] static inline int32_t sum(i32v values) { return vaddvq_s32(reinterpret_cast<int32x4_t>(values)); }

// Of numbers that are not NaN.
[[maybe_unused]] static inline float maximum(f32v values) { return vmaxvq_f32(reinterpret_cast<float32x4_t>(values)); }

[[maybe_unused]] static inline f32v reciprocal(f32v x) { return 1.0f / x; }

// Elements 0, 2, 1, 3.
[[maybe_unused]] static inline i32v swap_middle(i32v values) {
  return i32v{values[0], values[2], values[1], values[3]};
}
