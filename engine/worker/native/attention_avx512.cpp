// Attention with AVX-512 bf16 dot products, for processors without AMX and for head sizes that AMX does not support.
#include <immintrin.h>

#include <cmath>

#include "attention_kernels.h"

// GCC 12 warns about its own _mm512_undefined_ps.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

namespace glimpse {
namespace {

inline __m512bh load_pairs(const bf16* pairs) { return reinterpret_cast<__m512bh>(_mm512_load_si512(pairs)); }

inline __m512bh broadcast_pair(const bf16* pair) {
  int bits;
  __builtin_memcpy(&bits, pair, sizeof bits);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
}

// Computes all rows of kVectors vectors of 16 columns, kRows at a time: 16 sums in registers hide their latency.
// Not inlined: within `attend`, GCC's code takes a third longer.
template <int kRows, int kVectors>
__attribute__((noinline)) void multiply_columns(const bf16* const* a, int num_segments, int depth, long stride,
                                                int num_rows, const bf16* b, int columns, float* c) {
  for (int row = 0; row < num_rows; row += kRows) {
    __m512 sums[kRows][kVectors];
#pragma GCC unroll 16  // or else GCC keeps the array in memory
    for (int j = 0; j < kRows; ++j) {
      for (int k = 0; k < kVectors; ++k) sums[j][k] = _mm512_setzero_ps();
    }
    for (int segment = 0; segment < num_segments; ++segment) {
      const bf16* rows = a[segment] + row * stride;
      const bf16* pairs = b + segment * depth * columns;
      for (int i = 0; i < depth; i += 2) {
        __m512bh right[kVectors];
        for (int k = 0; k < kVectors; ++k) right[k] = load_pairs(pairs + i * columns + 32 * k);
        for (int j = 0; j < kRows; ++j) {
          const __m512bh left = broadcast_pair(rows + j * stride + i);
          for (int k = 0; k < kVectors; ++k) sums[j][k] = _mm512_dpbf16_ps(sums[j][k], right[k], left);
        }
      }
    }
#pragma GCC unroll 16
    for (int j = 0; j < kRows; ++j) {
      for (int k = 0; k < kVectors; ++k) _mm512_store_ps(c + (row + j) * columns + 16 * k, sums[j][k]);
    }
  }
}

void multiply(const bf16* const* a, int num_segments, int depth, long stride, int num_rows, const bf16* b, int columns,
              float* c) {
  static_assert(kMaxColumns == 32, "16 or 32 columns");
  if (columns == 32) multiply_columns<8, 2>(a, num_segments, depth, stride, num_rows, b, columns, c);
  else multiply_columns<16, 1>(a, num_segments, depth, stride, num_rows, b, columns, c);
}

#include "attention_avx512.h"

void enter() {}
void leave() {}

}  // namespace

const AttentionKernels<bf16> kAttentionAvx512Bf16 = {16,          enter,  leave, pack_queries, pack_keys,
                                                     pack_values, attend, merge, finish};

}  // namespace glimpse
