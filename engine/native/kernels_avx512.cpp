// Kernels for processors with AVX-512 and its bfloat16 dot product.
#include <immintrin.h>

#include "kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")

namespace glimpse {
namespace {

#include "vectors.h"
#include "rows.h"
#include "finish.h"
#include "multiply.h"

template <int kRows>
inline void dot_rows(const Block& block, int64_t first) {
  __m512 left[kRows], right[kRows];
  for (int row = 0; row < kRows; ++row) left[row] = right[row] = _mm512_setzero_ps();
  for (int64_t step = 0; step < block.num_steps; ++step) {
    const char* weights = block.panel + step * kStepBytes;
    const char* pairs = block.tiles + step * kTileBytes + first * 64;
    for (int64_t i = 0; i < block.lines_ahead; ++i) __builtin_prefetch(block.ahead + step * kStepBytes + i * 64);
    for (int line = 0; line < 16; ++line) {
      auto a = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weights + line * 64));
      auto b = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weights + line * 64 + kTileBytes));
      for (int row = 0; row < kRows; ++row) {
        auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(load<int32_t>(pairs + row * 64 + line * 4)));
        left[row] = _mm512_dpbf16_ps(left[row], a, x);
        right[row] = _mm512_dpbf16_ps(right[row], b, x);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    _mm512_storeu_ps(block.sums + (first + row) * 16, left[row]);
    _mm512_storeu_ps(block.sums + (first + row) * 16 + 256, right[row]);
  }
}

void multiply(const Block& block, bool int8) {
  if (int8) return multiply_plain<true>(block);
  int64_t row = 0;
  for (; row + 8 <= block.rows; row += 8) dot_rows<8>(block, row);
  for (; row + 4 <= block.rows; row += 4) dot_rows<4>(block, row);
  for (; row < block.rows; ++row) dot_rows<1>(block, row);
}

void multiply_and_finish(const Block& block, bool int8, Finishing&) { multiply(block, int8); }

}  // namespace

extern const Kernels kAvx512Kernels{false,   lay_out_row, split_row,           nullptr,
                                    nullptr, multiply,    multiply_and_finish, finish_all};

}  // namespace glimpse
