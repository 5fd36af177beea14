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

// Returns the windows of Pillow's bicubic filter.
Windows bicubic_windows(int64_t samples, int64_t resized, const Kernel& kernel);

}  // namespace glimpse
