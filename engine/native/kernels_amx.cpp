// The kernels for processors with AMX: tiles 0 to 3 are the sums, 4 and 5 the activations, 6 and 7 the weights.
#include <immintrin.h>

#include "kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,amx-tile,amx-int8,amx-bf16")

namespace glimpse {
namespace {

#include "vectors.h"
#include "rows.h"
#include "finish.h"
#include "ahead.h"

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

void begin(int64_t tile_rows) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = 64;
    config.rows[tile] = tile < 6 ? tile_rows : 16;
  }
  __asm__ volatile("" : : "r"(&config) : "memory");  // GCC's intrinsic does not say that it reads all of it
  _tile_loadconfig(&config);
}

void end() { _tile_release(); }

template <bool kInt8, bool kSecond>
inline void multiply_step(const Block& block, int64_t step) {
  const char* weights = block.panel + step * kStepBytes;
  fetch_ahead(block, step);
  _tile_loadd(4, block.tiles + step * kTileBytes, 64);
  _tile_loadd(6, weights, 64);
  if (kInt8) _tile_dpbssd(0, 4, 6);
  else _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, weights + kTileBytes, 64);
  if (kInt8) _tile_dpbssd(1, 4, 7);
  else _tile_dpbf16ps(1, 4, 7);
  if (!kSecond) return;
  _tile_loadd(5, block.second_tiles + step * kTileBytes, 64);
  if (kInt8) _tile_dpbssd(2, 5, 6);
  else _tile_dpbf16ps(2, 5, 6);
  if (kInt8) _tile_dpbssd(3, 5, 7);
  else _tile_dpbf16ps(3, 5, 7);
}

template <bool kInt8, bool kSecond>
void multiply_tiles(const Block& block, Finishing& finishing) {
  if (block.adds) {
    _tile_loadd(0, block.sums, 64);
    _tile_loadd(1, block.sums + 256, 64);
    if (kSecond) _tile_loadd(2, block.sums + 512, 64);
    if (kSecond) _tile_loadd(3, block.sums + 768, 64);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (kSecond) _tile_zero(2);
    if (kSecond) _tile_zero(3);
  }
  int64_t step = 0;
  for (; step < block.num_steps && finishing.block; ++step) {
    multiply_step<kInt8, kSecond>(block, step);
    finish_next(finishing);
    finish_next(finishing);
  }
  for (; step < block.num_steps; ++step) multiply_step<kInt8, kSecond>(block, step);
  _tile_stored(0, block.sums, 64);
  _tile_stored(1, block.sums + 256, 64);
  if (kSecond) _tile_stored(2, block.sums + 512, 64);
  if (kSecond) _tile_stored(3, block.sums + 768, 64);
}

// For one or two rows the vector units read weights faster than tiles do. The sums have the same bits: what AMX adds to
// a sum at once is that of the even inputs' products plus that of the odd ones', each in order.
template <int kRows>
void multiply_rows(const Block& block) {
  f32x16 sums[kRows][2];
  for (int row = 0; row < kRows; ++row) {
    for (int tile = 0; tile < 2; ++tile)
      sums[row][tile] = block.adds ? load<f32x16>(block.sums + tile * 256 + row * 16) : f32x16{};
  }
  for (int64_t step = 0; step < block.num_steps; ++step) {
    const char* weights = block.panel + step * kStepBytes;
    fetch_ahead(block, step);
    alignas(64) int32_t inputs[kRows][2][16];  // pairs of which only one is left: even, odd
    for (int row = 0; row < kRows; ++row) {
      auto pairs = load<i32x16>(block.tiles + step * kTileBytes + row * 64);
      store(inputs[row][0], pairs & 0xffff);
      store(inputs[row][1], pairs & (int32_t)0xffff0000);
    }
    __m512 products[kRows][2][2]{};  // even, odd of each tile
#pragma GCC unroll 16
    for (int line = 0; line < 16; ++line) {
      __m512bh tiles[] = {load<__m512bh>(weights + line * 64), load<__m512bh>(weights + kTileBytes + line * 64)};
      for (int row = 0; row < kRows; ++row) {
        for (int half = 0; half < 2; ++half) {
          auto input = (__m512bh)_mm512_set1_epi32(inputs[row][half][line]);
          for (int tile = 0; tile < 2; ++tile)
            products[row][tile][half] = _mm512_dpbf16_ps(products[row][tile][half], tiles[tile], input);
        }
      }
    }
    for (int row = 0; row < kRows; ++row) {
      for (int tile = 0; tile < 2; ++tile) sums[row][tile] += (f32x16)(products[row][tile][0] + products[row][tile][1]);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int tile = 0; tile < 2; ++tile) store(block.sums + tile * 256 + row * 16, sums[row][tile]);
  }
}

void multiply(const Block& block, bool int8, Finishing& finishing) {
  if (!int8 && block.rows == 1) return multiply_rows<1>(block);
  if (!int8 && block.rows == 2) return multiply_rows<2>(block);
  bool second = block.second_tiles;
  if (int8) return second ? multiply_tiles<true, true>(block, finishing) : multiply_tiles<true, false>(block, finishing);
  return second ? multiply_tiles<false, true>(block, finishing) : multiply_tiles<false, false>(block, finishing);
}

}  // namespace

extern const Kernels kAmxKernels{true, lay_out_row, split_row, begin, end, multiply, finish_all};

}  // namespace glimpse
