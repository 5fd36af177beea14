// Resampling with AVX2: two samples at a time, with each weight in two 16-bit digits.
#include <immintrin.h>

#include "kernels.h"

#pragma GCC target("avx2")

namespace glimpse {
namespace {

static inline __m256i load_bytes(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

// The sums of products can wrap around; the total over the digits is correct modulo 2^32.
static inline void resample_half(const uint8_t* from, int64_t stride, const Window& window, uint8_t* to) {
  const __m256i zero = _mm256_setzero_si256();
  __m256i low[4] = {zero, zero, zero, zero}, high[4] = {zero, zero, zero, zero};
  for (int64_t group = 0; group < window.num_groups; ++group, from += 2 * stride) {
    __m256i a = load_bytes(from), b = load_bytes(from + stride);
    __m256i ab[2] = {_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)};
    __m256i low_digits = _mm256_set1_epi32(window.words[2 * group]);
    __m256i high_digits = _mm256_set1_epi32(window.words[2 * group + 1]);
    for (int i = 0; i < 4; ++i) {
      __m256i pairs = i % 2 ? _mm256_unpackhi_epi8(ab[i / 2], zero) : _mm256_unpacklo_epi8(ab[i / 2], zero);
      low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(pairs, low_digits));
      high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(pairs, high_digits));
    }
  }
  const __m256i half = _mm256_set1_epi32(1 << (kFractionBits - 1));
  for (int i = 0; i < 4; ++i) {
    __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high[i], 16), _mm256_add_epi32(low[i], half));
    low[i] = _mm256_srai_epi32(sum, kFractionBits);
  }
  __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(low[0], low[1]), _mm256_packs_epi32(low[2], low[3]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
}

static inline void resample_block(const uint8_t* from, int64_t stride, const Window& window, uint8_t* to) {
  resample_half(from, stride, window, to);
  resample_half(from + 32, stride, window, to + 32);
}

#include "passes.h"

}  // namespace

extern const Kernel kAvx2Kernel{2, 2, to_tile, resample_columns, to_rows, resample_rows};

}  // namespace glimpse
