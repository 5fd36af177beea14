// Vectors of 8 float32 lanes, their transposition, and the product of attention_fma.h with sums in registers.
//
// To be included inside an anonymous namespace after `#pragma GCC target`.

#include "transpose.h"

constexpr int kPanelRows = 8;
constexpr int kPanelStride = kRangeKeys + 16;  // so that the same place in several rows is not in the same cache set

static_assert(kPanelRows * kPanelStride * sizeof(float) <= sizeof(Workspace::panel), "a panel does not fit");

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

// Eight numbers of 32 or 16 bits.
template <class T>
struct Eight;
template <>
struct Eight<float> {
  using Vector = __m256;
};
template <>
struct Eight<bf16> {
  using Vector = __m128i;
};

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

// Copies some rows of all segments, widened to float [num_rows][num_segments · depth] with a row stride of
// kPanelStride. Each is used for several columns: from memory, a float is broadcast by its load.
template <class T>
inline void widen_panel(const T* const* a, long offset, int num_segments, int depth, long stride, int num_rows,
                        float* panel) {
  for (int row = 0; row < num_rows; ++row) {
    float* to = panel + row * kPanelStride;
    for (int segment = 0; segment < num_segments; ++segment) {
      const T* from = a[segment] + offset + row * stride;
      for (int i = 0; i < depth; i += 16, to += 16) {
        Ymm::store(to, Ymm::widen(from + i));
        Ymm::store(to + 8, Ymm::widen(from + i + 8));
      }
    }
  }
}

// c[row][lane] = sum over i < depth of panel[row][i] · b[i][lane] for kRows rows and kVectors vectors, in order of i.
template <class Lanes, int kRows, int kVectors>
inline void multiply_tile(const float* panel, int depth, const float* b, int columns, float* c) {
  typename Lanes::Vector sums[kRows][kVectors];
#pragma GCC unroll 8  // or else GCC keeps the array in memory, before and after the loop over i
  for (int row = 0; row < kRows; ++row) {
    for (int j = 0; j < kVectors; ++j) sums[row][j] = Lanes::splat(0.0f);
  }
  for (int i = 0; i < depth; ++i) {
    typename Lanes::Vector right[kVectors];
    for (int j = 0; j < kVectors; ++j) right[j] = Lanes::load(b + i * columns + j * Lanes::kLanes);
    for (int row = 0; row < kRows; ++row) {
      const auto left = Lanes::splat(panel[row * kPanelStride + i]);
      for (int j = 0; j < kVectors; ++j) sums[row][j] = Lanes::fma(left, right[j], sums[row][j]);
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    for (int j = 0; j < kVectors; ++j) Lanes::store(c + row * columns + j * Lanes::kLanes, sums[row][j]);
  }
}
