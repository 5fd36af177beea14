// Attention with bf16 products in the AMX units and sums in float32.
#include <immintrin.h>

#include <algorithm>
#include <cmath>

#include "attention_kernels.h"

// GCC 12 warns about its own _mm512_undefined_ps.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")

namespace glimpse {
namespace {

// Computes Rows · Cols tiles of c, with sums in tile registers 0 to 3.
template <int Rows, int Cols>
inline void multiply_tiles(const bf16* const* a, long offset, int num_segments, long stride, const bf16* b, int columns,
                           float* c) {
  const long a_bytes = stride * 2, b_bytes = columns * 4;
  _tile_zero(0);
  if (Cols > 1) _tile_zero(1);
  if (Rows > 1) _tile_zero(2);
  if (Rows > 1 && Cols > 1) _tile_zero(3);
  for (int segment = 0; segment < num_segments; ++segment) {
    const bf16* rows = a[segment] + offset;
    const bf16* pairs = b + segment * 32 * columns;
    _tile_loadd(6, pairs, b_bytes);
    _tile_loadd(4, rows, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if (Cols > 1) {
      _tile_loadd(7, pairs + 32, b_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (Rows > 1) {
      _tile_loadd(5, rows + 16 * stride, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if (Cols > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, b_bytes);
  if (Cols > 1) _tile_stored(1, c + 16, b_bytes);
  if (Rows > 1) _tile_stored(2, c + 16 * columns, b_bytes);
  if (Rows > 1 && Cols > 1) _tile_stored(3, c + 16 * columns + 16, b_bytes);
}

void multiply(const bf16* const* a, int num_segments, int /*depth*/, long stride, int num_rows, const bf16* b,
              int columns, int /*num_queries*/, const Ahead<bf16>& /*ahead*/, float* c) {
  __asm__ volatile("" ::: "memory");  // GCC does not know that tile loads read memory
  int row = 0;
  const auto advance = [&](auto kernel, int step) {
    for (; row + step <= num_rows; row += step) {
      kernel(a, row * stride, num_segments, stride, b, columns, c + row * columns);
    }
  };
  advance(columns == 32 ? multiply_tiles<2, 2> : multiply_tiles<2, 1>, 32);
  advance(columns == 32 ? multiply_tiles<1, 2> : multiply_tiles<1, 1>, 16);
}

#include "attention_avx512.h"

void enter() {
  // Static: GCC treats a tile configuration as 8 bytes and would not initialize the rest of a local one.
  alignas(64) static const std::uint8_t config[64] = {
      1,  0,  0,  0,  0,  0,  0,  0,  0,  0, 0,  0, 0,  0, 0,  0,   // palette
      64, 0,  64, 0,  64, 0,  64, 0,  64, 0, 64, 0, 64, 0, 64, 0,   // bytes per row of 8 tiles
      0,  0,  0,  0,  0,  0,  0,  0,  0,  0, 0,  0, 0,  0, 0,  0,   //
      16, 16, 16, 16, 16, 16, 16, 16, 0,  0, 0,  0, 0,  0, 0,  0};  // rows
  _tile_loadconfig(config);
}

void leave() { _tile_release(); }

}  // namespace

const AttentionKernels<bf16> kAttentionAmx = {16,          enter,  leave, pack_queries, pack_keys,
                                              pack_values, attend, merge, finish};

}  // namespace glimpse
