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
#include "passes.h"
#include "rows.h"
#include "finish.h"
#include "row_finisher.h"
#include "dots.h"
#include "groups.h"
#include "multiply_int8.h"
#include "multiply_bytes.h"
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

void begin(int64_t tile_rows, int64_t row_bytes) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    const bool is_input = tile == 4 || tile == 5;
    config.row_bytes[tile] = is_input ? row_bytes : 64;
    config.rows[tile] = tile < 6 ? tile_rows : row_bytes / 4;
  }
  __asm__ volatile("" : : "r"(&config) : "memory");  // GCC's intrinsic does not declare that it reads all of it
  _tile_loadconfig(&config);
}

void end() { _tile_release(); }

inline __attribute__((always_inline)) void prefetch(const char* address, bool to_l2) {
  if (to_l2) _mm_prefetch(address, _MM_HINT_T1);
  else _mm_prefetch(address, _MM_HINT_T0);
}

template <bool kInt8, bool kSecond, class Rows>
inline __attribute__((always_inline)) void multiply_tiles(const Block& block, Rows& rows) {
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
  __m256 zeros = _mm256_setzero_ps();
  for (int64_t step = 0; step < block.num_steps; ++step) {
    const char* weights = block.panel + step * kStepBytes;
    if (block.ahead_in_windows) {
      Prefetches{ahead, block.lines_ahead, true}.prefetch_part(0, 1);
    } else {
      for (int64_t i = 0; i < block.lines_ahead; ++i) prefetch(ahead + i * 64, block.ahead_to_l2);
    }
    for (int64_t i = 0; block.ahead_apart && i < block.lines_ahead; ++i)
      prefetch(ahead + block.ahead_apart + i * 64, block.ahead_to_l2);
    ahead += block.lines_ahead * 64;
    _tile_loadd(4, block.tiles + step * kTileBytes, 64);
    _tile_loadd(6, weights, kLineBytes);
    if (kInt8) _tile_dpbssd(0, 4, 6);
    else _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weights + 64, kLineBytes);
    if (kInt8) _tile_dpbssd(1, 4, 7);
    else _tile_dpbf16ps(1, 4, 7);
    // If the vector units do nothing, they fall asleep, and the next store of a tile waits for them: 0.2 µs.
    __asm__ volatile("vaddps %0, %0, %0" : "+x"(zeros));
    rows.end_half_step();
    if (kSecond) {
      _tile_loadd(5, block.second_tiles + step * kTileBytes, 64);
      if (kInt8) _tile_dpbssd(2, 5, 6);
      else _tile_dpbf16ps(2, 5, 6);
      if (kInt8) _tile_dpbssd(3, 5, 7);
      else _tile_dpbf16ps(3, 5, 7);
    }
    rows.end_half_step();
  }
  _tile_stored(0, block.sums, 64);
  _tile_stored(1, block.sums + 256, 64);
  if (kSecond) _tile_stored(2, block.sums + 512, 64);
  if (kSecond) _tile_stored(3, block.sums + 768, 64);
}

template <Way kWay, bool kInt8>
void multiply_in_way(const Block* blocks, int64_t count, bool are_complete, Finishing& finishing) {
  RowFinisher<kWay, kInt8> rows(finishing);
  for (const Block* block = blocks; block < blocks + count; ++block) {
    if (block->second_tiles) multiply_tiles<kInt8, true>(*block, rows);
    else multiply_tiles<kInt8, false>(*block, rows);
    if (are_complete) rows.begin(*block);
  }
  rows.end(finishing);
}

template <bool kInt8>
void multiply_kind(const Block* blocks, int64_t count, bool are_complete, Finishing& finishing) {
  switch (way_of(finishing, blocks->index)) {
    case kGatedToTiles:
      return multiply_in_way<kGatedToTiles, kInt8>(blocks, count, are_complete, finishing);
    case kToTiles:
      return multiply_in_way<kToTiles, kInt8>(blocks, count, are_complete, finishing);
    case kToRows:
      return multiply_in_way<kToRows, kInt8>(blocks, count, are_complete, finishing);
    case kAnyWay:
      return multiply_in_way<kAnyWay, kInt8>(blocks, count, are_complete, finishing);
  }
}

// Sums of a group, and those of the block that they are scaled and added to: in as many parts, of consecutive rows, as
// there are tiles of sums.
template <bool kPlanes, bool kSecond>
struct GroupSums {
  static constexpr int kParts = kSecond ? 4 : 2;
  static constexpr int64_t kPartRows = (kSecond && !kPlanes ? 2 * kTileRows : kTileRows) / kParts;

  inline __attribute__((always_inline)) void add(int part) const {
    const int64_t first = part * kPartRows, place = first / kTileRows * 512 + first % kTileRows * 16;
    const int64_t count = rows - first < kPartRows ? rows - first : kPartRows;
    const GroupRow* group = groups[first / kTileRows] + first % kTileRows;
    if (adds) add_rows<true>(whole + place, group, count, sums + place);
    else add_rows<false>(whole + place, group, count, sums + place);
  }

  // Adds 128 · high + low, or sums of one plane, of both column tiles.
  template <bool kAdds>
  inline __attribute__((always_inline)) void add_rows(const int32_t* from, const GroupRow* group, int64_t count,
                                                      float* to) const {
    for (int64_t row = 0; row < count; ++row, from += 16, to += 16)
      for (int tile = 0; tile < 2; ++tile) {
        i32v values = load<i32v>(from + tile * 256);
        if (kPlanes) values = (values << 7) + load<i32v>(from + tile * 256 + 512);
        const f32v total = kAdds ? load<f32v>(to + tile * 256) : f32v{};
        store(to + tile * 256, add_group(total, values, scales[tile], minima[tile], group[row]));
      }
  }

  float* sums;
  const int32_t* whole;
  const GroupRow* groups[2];  // of the row tiles
  f32v scales[2], minima[2];  // of both column tiles
  int64_t rows;               // 0: there is no group
  bool adds;
};

// Multiplies activations in groups by weights of 8 bits, which int4 weights have been unpacked to. The vector units
// scale a group's sums after the matrix units have begun to multiply the next group, and between the stores of its
// tiles: a tenth faster than before them. While tiles are multiplied, the vector units have one port of two. Both
// compute as multiply_bytes.h and multiply_int8.h do, so that results are bit-identical to theirs.
template <bool kPlanes, bool kSecond>
void multiply_group_tiles(const Block& block, const Weight& weight) {
  const GroupNumbers numbers(weight);
  const int64_t feature = (block.index * num_steps(weight) + block.first_step) * kPanelWidth;
  const int64_t row_bytes = block.tile_inputs, tiles = weight.group_size / row_bytes;
  const char* weights = block.panel;
  const char* ahead = block.ahead;
  int64_t place = 0;
  alignas(64) int32_t memory[2][1024];
  GroupSums<kPlanes, kSecond> before{block.sums};
  for (int64_t step = 0; step < block.num_steps; ++step) {
    Prefetches{ahead, block.lines_ahead, block.ahead_in_windows}.prefetch_part(0, 1);
    ahead += block.lines_ahead * 64;
    _tile_zero(0);
    _tile_zero(1);
    if (kSecond) _tile_zero(2);
    if (kSecond) _tile_zero(3);
    for (int64_t tile = 0; tile < tiles; ++tile, place += kTileRows * row_bytes, weights += kPanelWidth * row_bytes) {
      _tile_loadd(4, block.tiles + place, row_bytes);
      _tile_loadd(6, weights, kLineBytes);
      _tile_dpbsud(0, 4, 6);
      _tile_loadd(7, weights + 64, kLineBytes);
      _tile_dpbsud(1, 4, 7);
      if (kSecond) {
        _tile_loadd(5, block.second_tiles + place, row_bytes);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
      }
    }
    int32_t* whole = memory[step % 2];
    _tile_stored(0, whole, 64);
    before.add(0);
    _tile_stored(1, whole + 256, 64);
    before.add(1);
    if (kSecond) {
      _tile_stored(2, whole + 512, 64);
      before.add(2);
      _tile_stored(3, whole + 768, 64);
      before.add(3);
    }
    before.whole = whole;
    before.rows = block.rows;
    before.adds = block.adds || step > 0;
    for (int i = 0; i < 2; ++i) {
      const int64_t first = feature + step * kPanelWidth + 16 * i;
      before.scales[i] = numbers.scales(first);
      before.minima[i] = numbers.minima(first);
    }
    before.groups[0] = block.groups + step * kTileRows;
    if (kSecond && !kPlanes) before.groups[1] = block.second_groups + step * kTileRows;
  }
  for (int part = 0; part < before.kParts; ++part) before.add(part);
}

Unpack unpacker(const Weight& weight) { return is_int4(weight) ? unpack_nibbles : nullptr; }

void multiply_in_groups(const Block& block, const Weight& weight) {
  if (block.tile_inputs && !has_byte_inputs(weight)) multiply_group_tiles<true, true>(block, weight);
  else if (block.tile_inputs && block.second_tiles) multiply_group_tiles<false, true>(block, weight);
  else if (block.tile_inputs) multiply_group_tiles<false, false>(block, weight);
  else if (reads_bytes(weight)) multiply_bytes(block, weight);
  else multiply_int8<true>(block, weight);
}

void multiply_and_finish(const Block* blocks, int64_t count, bool are_complete, Finishing& finishing) {
  const Weight& weight = finishing.weight;
  if (!has_groups(weight))
    return (is_int8(weight) ? multiply_kind<true> : multiply_kind<false>)(blocks, count, are_complete, finishing);
  for (const Block* block = blocks; block < blocks + count; ++block) {
    finish_all(finishing);
    multiply_in_groups(*block, weight);
    if (are_complete) begin_finishing(finishing, block, 1, block->num_steps);
  }
}

}  // namespace

extern const Kernels kAmxKernels{
    true,
    kMultipliesBytes,
    kByteInputs,
    2,
    16,
    2 * kTileRows,
    false,
    lay_out_row<bf16>,
    nullptr,
    split_row,
    quantize_rows,
    begin,
    end,
    unpacker,
    nullptr,
    multiply_and_finish,
    finish_all,
    kAdaptedRows,
    {shrink<bf16>, expand<bf16>},
    {},
};

}  // namespace glimpse
