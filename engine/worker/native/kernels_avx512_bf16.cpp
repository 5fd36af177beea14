// Products with AVX-512 and its dot products of bfloat16 and of int8.
#include <immintrin.h>

#include "kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,fma,f16c")
#define GLIMPSE_LANES 16
#define GLIMPSE_BF16 1
#define GLIMPSE_DOTS 1

namespace glimpse {
namespace {

#include "vectors.h"
#include "rows.h"
#include "finish.h"
#include "dots.h"
#include "groups.h"
#include "multiply_int8.h"
#include "multiply_bytes.h"
#include "low_rank.h"

constexpr int kFewRows = 8;  // rows whose sums are in registers at a time

// Multiplies rows [first, first + kRows) by both tiles of a panel.
template <int kRows>
inline void multiply_rows(const Block& block, int64_t first) {
  __m512 sums[kRows][2];
  float* place = block.sums + first * 16;
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < 2; ++v)
      sums[row][v] = block.adds ? _mm512_loadu_ps(place + row * 16 + v * 256) : _mm512_setzero_ps();
  const char* ahead = block.ahead;
  for (int64_t step = 0; step < block.num_steps; ++step) {
    const char* weights = block.panel + step * kStepBytes;
    const char* pairs = block.tiles + step * kTileBytes + first * 64;
#pragma GCC unroll 4
    for (int line = 0; line < 16; ++line) {
      prefetch_part(ahead, block.lines_ahead, line, 16);
      auto left = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weights + line * kLineBytes));
      auto right = reinterpret_cast<__m512bh>(_mm512_loadu_si512(weights + line * kLineBytes + 64));
      for (int row = 0; row < kRows; ++row) {
        auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(load<int32_t>(pairs + row * 64 + line * 4)));
        sums[row][0] = _mm512_dpbf16_ps(sums[row][0], left, x);
        sums[row][1] = _mm512_dpbf16_ps(sums[row][1], right, x);
      }
    }
    ahead += block.lines_ahead * 64;
  }
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < 2; ++v) _mm512_storeu_ps(place + row * 16 + v * 256, sums[row][v]);
}

// Multiplies `rows` rows, at most kRows.
template <int kRows>
void multiply_up_to(const Block& block, int64_t first, int64_t rows) {
  if constexpr (kRows > 0) {
    if (rows < kRows) return multiply_up_to<kRows - 1>(block, first, rows);
    multiply_rows<kRows>(block, first);
  }
}

void multiply(const Block& block, const Weight& weight) {
  if (reads_bytes(weight)) return multiply_bytes(block, weight);
  if (has_groups(weight)) return multiply_int8<true>(block, weight);
  if (is_int8(weight)) return multiply_int8<false>(block, weight);
  for (int64_t row = 0; row < block.rows; row += kFewRows)
    multiply_up_to<kFewRows>(block, row, block.rows - row < kFewRows ? block.rows - row : kFewRows);
}

}  // namespace

extern const Kernels kAvx512Bf16Kernels{
    false,
    kMultipliesBytes,
    2,
    kFewRows,
    kFewRows,
    lay_out_row<bf16>,
    nullptr,
    nullptr,
    quantize_row,
    nullptr,
    nullptr,
    nullptr,
    multiply,
    nullptr,
    finish_all,
    kAdaptedRows,
    {shrink<bf16>, expand<bf16>},
    {},
};

}  // namespace glimpse
