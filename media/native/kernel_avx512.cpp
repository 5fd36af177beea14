// Resampling with AVX-512 VNNI: four samples at a time, with each weight in three 8-bit digits.
#include <immintrin.h>

#include "kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni")

namespace glimpse {
namespace {

static inline __m512i load_bytes(const uint8_t* from) { return _mm512_loadu_si512(from); }

static inline __m512i total(__m512i low, __m512i middle, __m512i high) {
  __m512i upper = _mm512_add_epi32(_mm512_slli_epi32(high, 8), middle);
  return _mm512_srai_epi32(_mm512_add_epi32(_mm512_slli_epi32(upper, 8), low), kFractionBits);
}

// The sums of products can wrap around; the total over the digits is correct modulo 2^32.
static inline void resample_block(const uint8_t* from, int64_t stride, const Window& window, uint8_t* to) {
  const __m512i zero = _mm512_setzero_si512(), half = _mm512_set1_epi32(1 << (kFractionBits - 1));
  __m512i low[4] = {half, half, half, half}, middle[4] = {zero, zero, zero, zero}, high[4] = {zero, zero, zero, zero};
  for (int64_t group = 0; group < window.num_groups; ++group, from += 4 * stride) {
    __m512i a = load_bytes(from), b = load_bytes(from + stride);
    __m512i c = load_bytes(from + 2 * stride), d = load_bytes(from + 3 * stride);
    __m512i ab[2] = {_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)};
    __m512i cd[2] = {_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d)};
    __m512i low_digits = _mm512_set1_epi32(window.words[3 * group]);
    __m512i middle_digits = _mm512_set1_epi32(window.words[3 * group + 1]);
    __m512i high_digits = _mm512_set1_epi32(window.words[3 * group + 2]);
    for (int i = 0; i < 4; ++i) {
      __m512i quads = i % 2 ? _mm512_unpackhi_epi16(ab[i / 2], cd[i / 2]) : _mm512_unpacklo_epi16(ab[i / 2], cd[i / 2]);
      low[i] = _mm512_dpbusd_epi32(low[i], quads, low_digits);
      middle[i] = _mm512_dpbusd_epi32(middle[i], quads, middle_digits);
      high[i] = _mm512_dpbusd_epi32(high[i], quads, high_digits);
    }
  }
  for (int i = 0; i < 4; ++i) low[i] = total(low[i], middle[i], high[i]);
  __m512i bytes = _mm512_packus_epi16(_mm512_packs_epi32(low[0], low[1]), _mm512_packs_epi32(low[2], low[3]));
  _mm512_storeu_si512(to, bytes);
}

#include "passes.h"

}  // namespace

extern const Kernel kAvx512Kernel{4, 3, to_tile, resample_columns, to_rows, resample_rows};

}  // namespace glimpse
