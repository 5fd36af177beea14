// Dot products of four unsigned and four signed bytes, added to 32-bit sums. Included after vectors.h, in the same
// namespace, by files whose processors have AVX-512 VNNI or AVX-VNNI.
#pragma once

static inline i32v add_dots(i32v sums, i32v unsigned_bytes, i32v signed_bytes) {
#if GLIMPSE_AVX512
  return reinterpret_cast<i32v>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums),
                                                    reinterpret_cast<__m512i>(unsigned_bytes),
                                                    reinterpret_cast<__m512i>(signed_bytes)));
#else
  return reinterpret_cast<i32v>(_mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(sums),
                                                        reinterpret_cast<__m256i>(unsigned_bytes),
                                                        reinterpret_cast<__m256i>(signed_bytes)));
#endif
}
