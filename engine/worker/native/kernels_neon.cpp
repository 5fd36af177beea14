// Products with NEON.
#include <arm_neon.h>

#include "kernels.h"

#define GLIMPSE_LANES 4
#define GLIMPSE_BF16 0
#define GLIMPSE_DOTS 0

namespace glimpse {
namespace {

#include "kernels_float.h"

}  // namespace

extern const Kernels kNeonKernels = kFloatKernels;

}  // namespace glimpse
