// Products with NEON and its dot products of bytes.
#include <arm_neon.h>

#include "kernels.h"

#pragma GCC target("arch=armv8.2-a+dotprod")
#define GLIMPSE_KERNELS kNeonDotprodKernels
#define GLIMPSE_LANES 4
#define GLIMPSE_BF16 0
#define GLIMPSE_DOTS 1

#include "kernels_level.h"
