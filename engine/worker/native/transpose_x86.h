// Squares of floats in AVX2. To be included inside an anonymous namespace after `#pragma GCC target`.
#pragma once

constexpr int kSide = 8;  // rows of a square, and floats of a row
using SquareRow = __m256;

inline SquareRow load_side(const float* from) { return _mm256_loadu_ps(from); }
inline void store_side(float* to, SquareRow row) { _mm256_storeu_ps(to, row); }

// Transposes 8 rows of 8 floats.
inline void transpose(__m256 rows[8]) {
  __m256 quads[8];
  for (int i = 0; i < 8; i += 4) {
    const __m256 low01 = _mm256_unpacklo_ps(rows[i], rows[i + 1]), high01 = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    const __m256 low23 = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]);
    const __m256 high23 = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
    quads[i] = _mm256_shuffle_ps(low01, low23, 0x44);
    quads[i + 1] = _mm256_shuffle_ps(low01, low23, 0xee);
    quads[i + 2] = _mm256_shuffle_ps(high01, high23, 0x44);
    quads[i + 3] = _mm256_shuffle_ps(high01, high23, 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
  }
}
