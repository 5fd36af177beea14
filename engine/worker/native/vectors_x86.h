// Operations on vectors in AVX-512 and AVX2. Included by vectors.h.
#pragma once

#if GLIMPSE_LANES == 16

[[maybe_unused]] static inline f32v splat(float value) { return reinterpret_cast<f32v>(_mm512_set1_ps(value)); }
[[maybe_unused]] static inline i32v splat(int32_t value) { return reinterpret_cast<i32v>(_mm512_set1_epi32(value)); }

// Unsigned bytes, widened. GCC 12 would convert such vectors element by element.
[[maybe_unused]] static inline i32v load_bytes(const uint8_t* from) {
  return reinterpret_cast<i32v>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

// a · b + c, rounded once. The compiler is free to round `a * b + c` once in one copy of a function and twice in
// another.
[[maybe_unused]] static inline f32v multiply_add(f32v a, f32v b, f32v c) {
  return reinterpret_cast<f32v>(
      _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
}

// A division would take as long as the rest of a block's activation.
[[maybe_unused]] static inline f32v reciprocal(f32v x) {
  f32v near = reinterpret_cast<f32v>(_mm512_rcp14_ps(reinterpret_cast<__m512>(x)));
  return near * (2.0f - x * near);
}

#if GLIMPSE_BF16
static inline u16v narrow(f32v value) {  // to nearest, ties to even
  return reinterpret_cast<u16v>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(value)));
}

// Adds the products of pairs of bfloat16.
static inline f32v add_bf16_pairs(f32v sums, i32v left, i32v right) {
  return reinterpret_cast<f32v>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sums), reinterpret_cast<__m512bh>(left),
                                                 reinterpret_cast<__m512bh>(right)));
}
#endif

[[maybe_unused]] static inline int32_t sum(i32v values) {
  return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(values));
}

// Of numbers that are not NaN.
[[maybe_unused]] static inline float maximum(f32v values) {
  return _mm512_reduce_max_ps(reinterpret_cast<__m512>(values));
}

// Elements 0, 2, 1, 3 of each four.
[[maybe_unused]] static inline i32v swap_middle(i32v values) {
  return reinterpret_cast<i32v>(_mm512_shuffle_epi32(reinterpret_cast<__m512i>(values), _MM_PERM_DBCA));
}

#else

[[maybe_unused]] static inline f32v splat(float value) { return reinterpret_cast<f32v>(_mm256_set1_ps(value)); }
[[maybe_unused]] static inline i32v splat(int32_t value) { return reinterpret_cast<i32v>(_mm256_set1_epi32(value)); }

[[maybe_unused]] static inline i32v load_bytes(const uint8_t* from) {
  return reinterpret_cast<i32v>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}

[[maybe_unused]] static inline f32v multiply_add(f32v a, f32v b, f32v c) {
  return reinterpret_cast<f32v>(
      _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
}

[[maybe_unused]] static inline f32v reciprocal(f32v x) { return 1.0f / x; }

[[maybe_unused]] static inline int32_t sum(i32v values) {
  const __m256i all = reinterpret_cast<__m256i>(values);
  __m128i part = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  part = _mm_add_epi32(part, _mm_shuffle_epi32(part, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(part, _mm_shuffle_epi32(part, 0xb1)));
}

[[maybe_unused]] static inline float maximum(f32v values) {
  const __m256 all = reinterpret_cast<__m256>(values);
  __m128 part = _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  part = _mm_max_ps(part, _mm_movehl_ps(part, part));
  return _mm_cvtss_f32(_mm_max_ps(part, _mm_movehdup_ps(part)));
}

[[maybe_unused]] static inline i32v swap_middle(i32v values) {
  return reinterpret_cast<i32v>(_mm256_shuffle_epi32(reinterpret_cast<__m256i>(values), _MM_SHUFFLE(3, 1, 2, 0)));
}

#endif
