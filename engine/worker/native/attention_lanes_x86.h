// Vectors of 8 float32 lanes in AVX2, and squares of 16-bit numbers.
//
// To be included inside an anonymous namespace after `#pragma GCC target`.

#include "transpose_x86.h"

struct Ymm {
  using Vector = __m256;
  static constexpr int kLanes = 8;

  static Vector splat(float value) { return _mm256_set1_ps(value); }
  static Vector load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Vector value) { _mm256_storeu_ps(to, value); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static Vector fms(Vector a, Vector b, Vector c) { return _mm256_fmsub_ps(a, b, c); }
  static Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }  // b if one of them is NaN

  static Vector widen(const float* from) { return load(from); }
  static Vector widen(const bf16* from) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
  }

  static void narrow(Vector value, float* to) { store(to, value); }

  // Rounds to nearest, ties to even. NaN stays NaN.
  static void narrow(Vector value, bf16* to) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    const __m256i chosen = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(rounded), nan, is_nan));
    const __m256i high = _mm256_srli_epi32(chosen, 16);
    const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
  }

  // 2^n from a float whose lowest nine bits are n + 127 >= 0; 0 if they are 0.
  static Vector power_from_low_bits(Vector value) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(value), 23));
  }

  // Infinity minus infinity is NaN, so the origin is 0 if all keys were masked.
  static Vector finite_or_zero(Vector max) {
    return _mm256_and_ps(max, _mm256_cmp_ps(max, splat(-INFINITY), _CMP_NEQ_UQ));
  }

  // Loads the lanes whose limit exceeds `key`; the others become -inf.
  static Vector load_visible(const float* from, const int* limits, int key) {
    const __m256i limit = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(limits));
    const __m256i seen = _mm256_cmpgt_epi32(limit, _mm256_set1_epi32(key));
    return _mm256_blendv_ps(splat(-INFINITY), load(from), _mm256_castsi256_ps(seen));
  }
};

using Base = Ymm;

inline __m256 row_of_square(float) { return _mm256_setzero_ps(); }
inline __m128i row_of_square(bf16) { return _mm_setzero_si128(); }

// Transposes 8 rows of 8 16-bit elements.
inline void transpose(__m128i rows[8]) {
  __m128i pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm_unpacklo_epi16(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm_unpackhi_epi16(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm_unpacklo_epi32(pairs[i], pairs[i + 2]);
    quads[i + 1] = _mm_unpackhi_epi32(pairs[i], pairs[i + 2]);
    quads[i + 2] = _mm_unpacklo_epi32(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = _mm_unpackhi_epi32(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    rows[2 * i] = _mm_unpacklo_epi64(quads[i], quads[i + 4]);
    rows[2 * i + 1] = _mm_unpackhi_epi64(quads[i], quads[i + 4]);
  }
}
