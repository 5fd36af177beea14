// Dot products of small integers in AVX-512 and AVX2, with VNNI or without. Included by dots.h.
#pragma once

#if GLIMPSE_DOTS

template <bool /*kGroups*/>
static inline i32v add_pairs(i32v sums, i32v weights, i32v inputs) {
#if GLIMPSE_LANES == 16
  return reinterpret_cast<i32v>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(weights),
                                                    reinterpret_cast<__m512i>(inputs)));
#else
  return reinterpret_cast<i32v>(_mm256_dpwssd_avx_epi32(
      reinterpret_cast<__m256i>(sums), reinterpret_cast<__m256i>(weights), reinterpret_cast<__m256i>(inputs)));
#endif
}

static inline i32v add_fours(i32v sums, i32v weights, i32v inputs) {
#if GLIMPSE_LANES == 16
  return reinterpret_cast<i32v>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(weights),
                                                    reinterpret_cast<__m512i>(inputs)));
#else
  return reinterpret_cast<i32v>(_mm256_dpbusd_avx_epi32(
      reinterpret_cast<__m256i>(sums), reinterpret_cast<__m256i>(weights), reinterpret_cast<__m256i>(inputs)));
#endif
}

#else

template <bool /*kGroups*/>
static inline i32v add_pairs(i32v sums, i32v weights, i32v inputs) {
#if GLIMPSE_LANES == 16
  const i32v products =
      reinterpret_cast<i32v>(_mm512_madd_epi16(reinterpret_cast<__m512i>(weights), reinterpret_cast<__m512i>(inputs)));
#else
  const i32v products =
      reinterpret_cast<i32v>(_mm256_madd_epi16(reinterpret_cast<__m256i>(weights), reinterpret_cast<__m256i>(inputs)));
#endif
  // In place: else the compiler adds products to each other first, or moves sums about, and spills them.
  __asm__("vpaddd %1, %0, %0" : "+v"(sums) : "v"(products));
  return sums;
}

// Sums of 16 bits: eight products of up to 2 · 15 · 127 do not overflow.
using Fours = i32v;

static inline Fours add_fours(Fours sums, i32v weights, i32v inputs) {
#if GLIMPSE_LANES == 16
  const __m512i products = _mm512_maddubs_epi16(reinterpret_cast<__m512i>(weights), reinterpret_cast<__m512i>(inputs));
  return reinterpret_cast<i32v>(_mm512_add_epi16(reinterpret_cast<__m512i>(sums), products));
#else
  const __m256i products = _mm256_maddubs_epi16(reinterpret_cast<__m256i>(weights), reinterpret_cast<__m256i>(inputs));
  __asm__("vpaddw %1, %0, %0" : "+x"(sums) : "x"(products));  // in place, as above
  return sums;
#endif
}

static inline i32v total_of(Fours sums) {
#if GLIMPSE_LANES == 16
  return reinterpret_cast<i32v>(_mm512_madd_epi16(reinterpret_cast<__m512i>(sums), _mm512_set1_epi16(1)));
#else
  return reinterpret_cast<i32v>(_mm256_madd_epi16(reinterpret_cast<__m256i>(sums), _mm256_set1_epi16(1)));
#endif
}

#endif
