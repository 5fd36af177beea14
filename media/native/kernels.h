// What a level's compilation offers to resize.cpp: the two passes of resampling, over packed weights.
#pragma once

#include <cstdint>

namespace glimpse {

constexpr int kFractionBits = 22;    // of a weight: 32 less 8 of a sample and 2 for overshoot, as Pillow has it
constexpr int64_t kTileRows = 16;    // of pixels of 4 bytes; a tile holds their columns, one after the other
constexpr int64_t kBlockBytes = 64;  // what is weighed at once: a column of a tile, or so much of a row

// Which samples make one sample of the result. The last group may reach behind the end, with weights of zero.
struct Window {
  int64_t first;         // sample
  int64_t num_groups;    // of samples that are weighed together
  const int32_t* words;  // [num_groups][digits], each with one digit of the weights of its group's samples
};

struct Kernel {
  int group;   // samples that are weighed together; a digit is signed and has 32 / group bits
  int digits;  // of a weight, the lowest first
  // 16 rows of pixels of 3 or 4 bytes → a tile of `width` columns.
  void (*to_tile)(const uint8_t* const* rows, int64_t width, int64_t pixel_bytes, uint8_t* tile);
  // A tile's columns → `count` columns of another.
  void (*weigh_columns)(const uint8_t* tile, const Window* windows, int64_t count, uint8_t* resized);
  // A tile's columns, their number rounded up to fours → 16 rows of pixels of 3 bytes, each with up to 13 bytes more.
  void (*to_rows)(const uint8_t* tile, int64_t width, uint8_t* rows, int64_t row_bytes);
  // Rows → one row, all of whole blocks.
  void (*weigh_rows)(const uint8_t* rows, int64_t row_bytes, const Window& window, uint8_t* row);
};

extern const Kernel kAvx2Kernel, kAvx512Kernel;

}  // namespace glimpse
