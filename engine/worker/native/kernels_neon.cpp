// Products with NEON.
#include <arm_neon.h>

#include "kernels.h"

#define GLIMPSE_KERNELS kNeonKernels
#define GLIMPSE_LANES 4
#define GLIMPSE_BF16 0
#define GLIMPSE_DOTS 0

#include "kernels_level.h"
