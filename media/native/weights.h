// Filter weights for resampling a line of samples to another length.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace glimpse {

struct Windows {
  std::vector<Window> each;    // for each output sample
  std::vector<int32_t> words;  // storage of the windows' words
  int64_t longest = 0;         // of a window, in samples

  Windows() = default;
  Windows(Windows&&) = default;
};

enum class Filter : int { kLanczos = 1, kBilinear = 2, kBicubic = 3 };  // as Pillow numbers them

// Returns the windows of one of Pillow's filters.
Windows filter_windows(Filter filter, int64_t samples, int64_t resized, const Kernel& kernel);

}  // namespace glimpse
