// The interface between resize.cpp and the kernels of each instruction set: two resampling passes over packed weights.
#pragma once

#include <cstdint>

namespace glimpse {

constexpr int kFractionBits = 22;    // of a weight: 32 bits minus 8 of a sample and 2 for overshoot, as in Pillow
constexpr int64_t kTileRows = 16;    // rows of 4-byte pixels; a tile stores their columns consecutively
constexpr int64_t kBlockBytes = 64;  // bytes resampled at once: a column of a tile, or a part of a row

// The input samples of one output sample. The last group may extend past the end, with weights of zero.
struct Window {
  int64_t first;         // index of the first sample
  int64_t num_groups;    // groups of `Kernel::group` samples
  const int32_t* words;  // [num_groups][digits]: each word packs one digit of the weights of a group
};

struct Kernel {
  int group;   // samples that are weighted together; a digit is signed and has 32 / group bits
  int digits;  // digits per weight, lowest first
  // Converts 16 rows of pixels of 3 or 4 bytes to a tile of `width` columns.
  void (*to_tile)(const uint8_t* const* rows, int64_t width, int64_t pixel_bytes, uint8_t* tile);
  // Resamples the columns of a tile to `count` columns of another tile.
  void (*resample_columns)(const uint8_t* tile, const Window* windows, int64_t count, uint8_t* resized);
  // Converts a tile to 16 rows of 3-byte pixels. Reads columns up to a multiple of 4 and writes up to 13 bytes past
  // each row.
  void (*to_rows)(const uint8_t* tile, int64_t width, uint8_t* rows, int64_t row_bytes);
  // Resamples rows to one row. All rows consist of whole blocks.
  void (*resample_rows)(const uint8_t* rows, int64_t row_bytes, const Window& window, uint8_t* row);
};

extern const Kernel kAvx2Kernel, kAvx512Kernel;

enum Level : int { kNone = 0, kAvx2 = 1, kAvx512 = 2, kNeon = 3 };

// In the file of the architecture: the highest level of this machine, and the kernel of a level.
int highest_level();
const Kernel& kernel_of(int level);

}  // namespace glimpse
