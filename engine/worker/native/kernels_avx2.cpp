// Products with AVX2.
#include <immintrin.h>

#include "kernels.h"

#pragma GCC target("avx2,fma,f16c")
#define GLIMPSE_KERNELS kAvx2Kernels
#define GLIMPSE_LANES 8
#define GLIMPSE_BF16 0
#define GLIMPSE_DOTS 0

#include "kernels_level.h"
