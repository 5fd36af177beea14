// Kernels for processors with AMX. Tile registers 0 to 3 hold sums, 4 and 5 activations, 6 and 7 weights.
#include <immintrin.h>

#include "kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,fma,f16c,amx-tile,amx-int8,amx-bf16")
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
#include "multiply_int4.h"
#include "low_rank.h"

// Splits one row of tiles into two int8 planes.
PlanesRow split_row(const void* tile_row, int64_t num_steps, int8_t* high, int8_t* low) {
  const Element* row = static_cast<const Element*>(tile_row);
  const float limit = largest_magnitude(row, 0, num_steps * 64);
  constexpr float kSteps = 127 * 128 + 63;
  i32v high_sum{}, low_sum{};
  for (int64_t i = 0; i < num_steps * 64; i += kLanes) {
    i32v whole = round_to_integers(load_element(row + place_of(i)), kSteps / limit);
    i32v upper = (whole + 64) >> 7, lower = whole - upper * 128;
    int64_t place = (i / 64) * kTileBytes + i % 64;
    store(high + place, __builtin_convertvector(upper, i8v));
    store(low + place, __builtin_convertvector(lower, i8v));
    high_sum += upper;
    low_sum += lower;
  }
  return {limit / kSteps, sum(high_sum), sum(low_sum)};
}

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
  __asm__ volatile("" : : "r"(&config) : "memory");  // GCC's intrinsic does not declare that it reads all of it
  _tile_loadconfig(&config);
}

void end() { _tile_release(); }

template <bool kInt8, bool kSecond, bool kFinish>
void multiply_tiles(const Block& block, Finishing* finishing) {
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
  const char* ahead = block.ahead;
  for (int64_t step = 0; step < block.num_steps; ++step) {
    const char* weights = block.panel + step * kStepBytes;
    if (kFinish && block.ahead_to_l2)
      for (int64_t i = 0; i < block.lines_ahead; ++i) _mm_prefetch(ahead + i * 64, _MM_HINT_T1);
    else
      for (int64_t i = 0; i < block.lines_ahead; ++i) _mm_prefetch(ahead + i * 64, _MM_HINT_T0);
    ahead += block.lines_ahead * 64;
    _tile_loadd(4, block.tiles + step * kTileBytes, 64);
    _tile_loadd(6, weights, kLineBytes);
    if (kInt8) _tile_dpbssd(0, 4, 6);
    else _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weights + 64, kLineBytes);
    if (kInt8) _tile_dpbssd(1, 4, 7);
    else _tile_dpbf16ps(1, 4, 7);
    if (kSecond) {
      _tile_loadd(5, block.second_tiles + step * kTileBytes, 64);
      if (kInt8) _tile_dpbssd(2, 5, 6);
      else _tile_dpbf16ps(2, 5, 6);
      if (kInt8) _tile_dpbssd(3, 5, 7);
      else _tile_dpbf16ps(3, 5, 7);
    }
    if (kFinish)
      for (int64_t i = 0; i < finishing->pace; ++i) finish_next(*finishing);
  }
  _tile_stored(0, block.sums, 64);
  _tile_stored(1, block.sums + 256, 64);
  if (kSecond) _tile_stored(2, block.sums + 512, 64);
  if (kSecond) _tile_stored(3, block.sums + 768, 64);
}

template <bool kFinish>
void multiply_kind(const Block& block, bool int8, Finishing* finishing) {
  bool second = block.second_tiles;
  if (int8)
    return second ? multiply_tiles<true, true, kFinish>(block, finishing)
                  : multiply_tiles<true, false, kFinish>(block, finishing);
  return second ? multiply_tiles<false, true, kFinish>(block, finishing)
                : multiply_tiles<false, false, kFinish>(block, finishing);
}

// The vector units scale the sums of groups.
void multiply_in_groups(const Block& block, const Weight& weight) {
  if (is_int4(weight)) multiply_int4(block, weight);
  else multiply_int8<true>(block, weight);
}

void multiply(const Block& block, const Weight& weight) {
  if (has_groups(weight)) return multiply_in_groups(block, weight);
  multiply_kind<false>(block, is_int8(weight), nullptr);
}

void multiply_and_finish(const Block& block, const Weight& weight, Finishing& finishing) {
  if (has_groups(weight)) {
    finish_all(finishing);
    return multiply_in_groups(block, weight);
  }
  multiply_kind<true>(block, is_int8(weight), &finishing);
}

}  // namespace

extern const Kernels kAmxKernels{
    true,          2,       16,      0,        lay_out_row<bf16>,   nullptr,    split_row,  quantize_row,
    begin,         end,     nullptr, multiply, multiply_and_finish, finish_all, kBlockRows, adapt<bf16>,
    combine<bf16>, nullptr, nullptr,
};

}  // namespace glimpse
