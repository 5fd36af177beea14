// Attention with AVX-512 bf16 dot products, for processors without AMX and for head sizes that AMX does not support.
#include <immintrin.h>

#include <algorithm>
#include <cmath>

#include "attention_kernels.h"

// GCC 12 warns about its own _mm512_undefined_ps.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

namespace glimpse {
namespace {

inline __m512 add_products(__m512 sums, __m512i left, __m512i right) {
  return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(left), reinterpret_cast<__m512bh>(right));
}
inline __m256 add_products(__m256 sums, __m256i left, __m256i right) {
  return _mm256_dpbf16_ps(sums, reinterpret_cast<__m256bh>(left), reinterpret_cast<__m256bh>(right));
}
inline void broadcast(int pair, __m512i& vector) { vector = _mm512_set1_epi32(pair); }
inline void broadcast(int pair, __m256i& vector) { vector = _mm256_set1_epi32(pair); }

// Computes all rows of kVectors vectors of columns, kRows at a time: 16 sums in registers hide their latency. Several
// pairs of a row follow each other, so that rows are found by adding the stride: GCC would keep 16 addresses in memory.
// Not inlined: within `attend`, GCC's code takes a third longer.
template <class Floats, class Pairs, int kRows, int kVectors>
__attribute__((noinline)) void multiply_columns(const bf16* const* a, int num_segments, int depth, long stride,
                                                int num_rows, const bf16* b, int columns, Ahead<bf16> ahead, float* c) {
  constexpr int kPairs = 4, kLanes = sizeof(Floats) / sizeof(float);
  for (int row = 0; row < num_rows; row += kRows) {
    Floats sums[kRows][kVectors];
#pragma GCC unroll 16  // or else GCC keeps the array in memory
    for (int j = 0; j < kRows; ++j) {
      for (int k = 0; k < kVectors; ++k) sums[j][k] = Floats{};
    }
    for (int segment = 0; segment < num_segments; ++segment) {
      const bf16* rows = a[segment] + row * stride;
      const bf16* pairs = b + segment * depth * columns;
      for (int i = 0; i < depth; i += 2 * kPairs) {
        Pairs right[kPairs][kVectors];
        for (int pair = 0; pair < kPairs; ++pair) {
          for (int k = 0; k < kVectors; ++k)
            right[pair][k] = *reinterpret_cast<const Pairs*>(pairs + (i + 2 * pair) * columns + 2 * kLanes * k);
        }
        // Where there are more columns, other tiles had the same keys before.
        for (int line = 0; kVectors == 1 && line < kRows / kPairs; ++line) ahead.prefetch();
        const bf16* left = rows + i;
#pragma GCC unroll 16
        for (int j = 0; j < kRows; ++j, left += stride) {
#pragma GCC unroll 4
          for (int pair = 0; pair < kPairs; ++pair) {
            int bits;
            __builtin_memcpy(&bits, left + 2 * pair, sizeof bits);
            Pairs pairs_of_row;
            broadcast(bits, pairs_of_row);
            for (int k = 0; k < kVectors; ++k) sums[j][k] = add_products(sums[j][k], right[pair][k], pairs_of_row);
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int j = 0; j < kRows; ++j) {
      for (int k = 0; k < kVectors; ++k) *reinterpret_cast<Floats*>(c + (row + j) * columns + kLanes * k) = sums[j][k];
    }
  }
}

void multiply(const bf16* const* a, int num_segments, int depth, long stride, int num_rows, const bf16* b, int columns,
              int num_queries, const Ahead<bf16>& ahead, float* c) {
  static_assert(kMaxColumns == 32, "16 or 32 columns");
  // Processors have two vectors of 256 bits for one of 512.
  if (num_queries <= 8)
    multiply_columns<__m256, __m256i, 16, 1>(a, num_segments, depth, stride, num_rows, b, columns, ahead, c);
  else if (columns == 16)
    multiply_columns<__m512, __m512i, 16, 1>(a, num_segments, depth, stride, num_rows, b, columns, ahead, c);
  else multiply_columns<__m512, __m512i, 8, 2>(a, num_segments, depth, stride, num_rows, b, columns, ahead, c);
}

#include "attention_avx512.h"

void enter() {}
void leave() {}

}  // namespace

const AttentionKernels<bf16> kAttentionAvx512Bf16 = {16,          enter,  leave, pack_queries, pack_keys,
                                                     pack_values, attend, merge, finish};

}  // namespace glimpse
