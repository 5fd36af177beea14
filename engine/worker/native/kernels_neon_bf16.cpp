// Products with NEON and its products of matrices of bfloat16 and of bytes.
#include <arm_neon.h>

#include "kernels.h"

#pragma GCC target("arch=armv8.2-a+dotprod+i8mm+bf16")
#define GLIMPSE_KERNELS kNeonBf16Kernels
#define GLIMPSE_LANES 4
#define GLIMPSE_BF16 1
#define GLIMPSE_DOTS 2

#include "kernels_level.h"
