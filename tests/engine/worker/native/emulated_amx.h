// Tile registers of AMX in software, for processors with AVX-512 BF16 and without AMX: included before each file of the
// kernels, which then has AMX's level. Operations are those of Intel's manual.
#pragma once

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated {

struct Tile {
  int rows, row_bytes;
  alignas(64) uint8_t bytes[16][64];
};

inline thread_local Tile tiles[8];

inline void loadconfig(const void* memory) {
  const uint8_t* config = static_cast<const uint8_t*>(memory);
  for (int i = 0; i < 8; ++i) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, config + 16 + 2 * i, sizeof row_bytes);
    tiles[i] = {config[48 + i], row_bytes, {}};
  }
}

inline void release() { std::memset(tiles, 0, sizeof tiles); }
inline void zero(int tile) { std::memset(tiles[tile].bytes, 0, sizeof tiles[tile].bytes); }

inline void loadd(int tile, const void* from, long stride) {
  zero(tile);
  for (int row = 0; row < tiles[tile].rows; ++row)
    std::memcpy(tiles[tile].bytes[row], static_cast<const char*>(from) + row * stride, tiles[tile].row_bytes);
}

inline void stored(int tile, void* to, long stride) {
  for (int row = 0; row < tiles[tile].rows; ++row)
    std::memcpy(static_cast<char*>(to) + row * stride, tiles[tile].bytes[row], tiles[tile].row_bytes);
}

// Adds to each element of `sums` the products of a row of `left` and a column of `right`, whose elements lie four bytes
// by four. `add` adds those of four bytes to a number.
template <class Number, class Partial, class Add>
void multiply(Tile& sums, const Tile& left, const Tile& right, const Add& add) {
  for (int row = 0; row < sums.rows; ++row)
    for (int column = 0; column < sums.row_bytes / 4; ++column) {
      Partial partial{};
      for (int k = 0; k < left.row_bytes / 4 && k < right.rows; ++k)
        add(partial, left.bytes[row] + 4 * k, right.bytes[k] + 4 * column);
      Number sum;
      std::memcpy(&sum, sums.bytes[row] + 4 * column, sizeof sum);
      sum += partial.total();
      std::memcpy(sums.bytes[row] + 4 * column, &sum, sizeof sum);
    }
}

struct Whole {
  int32_t sum = 0;
  int32_t total() const { return sum; }
};

template <class Right>
void dpbs(int sums, int left, int right) {
  multiply<int32_t, Whole>(tiles[sums], tiles[left], tiles[right],
                           [](Whole& whole, const uint8_t* a, const uint8_t* b) {
                             for (int i = 0; i < 4; ++i)
                               whole.sum += static_cast<int8_t>(a[i]) * static_cast<Right>(b[i]);
                           });
}

struct Pair {
  float sums[2] = {0, 0};
  float total() const { return sums[0] + sums[1]; }
};

inline float widen(const uint8_t* from) {
  const uint32_t bits = static_cast<uint32_t>(from[0]) << 16 | static_cast<uint32_t>(from[1]) << 24;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline void dpbf16ps(int sums, int left, int right) {
  multiply<float, Pair>(tiles[sums], tiles[left], tiles[right], [](Pair& pair, const uint8_t* a, const uint8_t* b) {
    for (int i = 0; i < 2; ++i) pair.sums[i] = std::fma(widen(a + 2 * i), widen(b + 2 * i), pair.sums[i]);
  });
}

inline void cpuid(unsigned leaf, unsigned subleaf, unsigned* eax, unsigned* ebx, unsigned* ecx, unsigned* edx) {
  __get_cpuid_count(leaf, subleaf, eax, ebx, ecx, edx);
  if (leaf == 7 && subleaf == 0) *edx |= 1u << 22 | 1u << 24 | 1u << 25;
}

}  // namespace emulated

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::loadconfig
#define _tile_release emulated::release
#define _tile_zero emulated::zero
#define _tile_loadd emulated::loadd
#define _tile_stored emulated::stored
#define _tile_dpbssd emulated::dpbs<int8_t>
#define _tile_dpbsud emulated::dpbs<uint8_t>
#define _tile_dpbf16ps emulated::dpbf16ps
#define __get_cpuid_count emulated::cpuid
#define syscall(...) 0
