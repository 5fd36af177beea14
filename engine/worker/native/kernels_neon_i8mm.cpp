// Products with NEON and its products of matrices of bytes.
#include <arm_neon.h>

#include "kernels.h"

#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#define GLIMPSE_LANES 4
#define GLIMPSE_BF16 0
#define GLIMPSE_DOTS 2

namespace glimpse {
namespace {

#include "kernels_float.h"

}  // namespace

extern const Kernels kNeonI8mmKernels = kFloatKernels;

}  // namespace glimpse
