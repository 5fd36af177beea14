// Attention with AVX-512 bf16 dot products, for processors without AMX and for head sizes that AMX does not support.
#include <immintrin.h>

#include <cmath>

#include "attention_kernels.h"

// GCC 12 warns about its own _mm512_undefined_ps.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

namespace glimpse {
namespace {

constexpr int kRows = 8;  // rows whose sums are in registers at a time

inline __m512bh load_pairs(const bf16* pairs) { return reinterpret_cast<__m512bh>(_mm512_load_si512(pairs)); }

inline __m512bh broadcast_pair(const bf16* pair) {
  int bits;
  __builtin_memcpy(&bits, pair, sizeof bits);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
}

void multiply(const bf16* const* a, int num_segments, int depth, long stride, int num_rows, const bf16* b, int columns,
              float* c) {
  for (int row = 0; row < num_rows; row += kRows) {
    for (int column = 0; column < columns; column += 16) {
      __m512 sums[kRows];
      for (__m512& sum : sums) sum = _mm512_setzero_ps();
      for (int segment = 0; segment < num_segments; ++segment) {
        const bf16* rows = a[segment] + row * stride;
        const bf16* pairs = b + segment * depth * columns + 2 * column;
        for (int i = 0; i < depth; i += 2) {
          const __m512bh pair = load_pairs(pairs + i * columns);
          for (int j = 0; j < kRows; ++j) {
            sums[j] = _mm512_dpbf16_ps(sums[j], pair, broadcast_pair(rows + j * stride + i));
          }
        }
      }
      for (int j = 0; j < kRows; ++j) _mm512_store_ps(c + (row + j) * columns + column, sums[j]);
    }
  }
}

#include "attention_avx512.h"

void enter() {}
void leave() {}

}  // namespace

const AttentionKernels<bf16> kAttentionAvx512Bf16 = {16,          enter,  leave, pack_queries, pack_keys,
                                                     pack_values, attend, merge, finish};

}  // namespace glimpse
