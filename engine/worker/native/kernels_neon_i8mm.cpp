// Products with NEON and its products of matrices of bytes.
#include <arm_neon.h>

#include "kernels.h"

#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#define GLIMPSE_KERNELS kNeonI8mmKernels
#define GLIMPSE_LANES 4
#define GLIMPSE_BF16 0
#define GLIMPSE_DOTS 2

#include "kernels_level.h"
