// Products with AVX-512.
#include <immintrin.h>

#include "kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")
#define GLIMPSE_KERNELS kAvx512Kernels
#define GLIMPSE_LANES 16
#define GLIMPSE_BF16 0
#define GLIMPSE_DOTS 0

#include "kernels_level.h"
