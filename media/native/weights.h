// How the samples of a line become those of a longer or shorter one.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace glimpse {

struct Windows {
  std::vector<Window> each;    // sample of the result
  std::vector<int32_t> words;  // to which they point
  int64_t longest = 0;         // samples

  Windows() = default;
  Windows(Windows&&) = default;
};

// Bicubic, as Pillow has it.
Windows bicubic_windows(int64_t samples, int64_t resized, const Kernel& kernel);

}  // namespace glimpse
