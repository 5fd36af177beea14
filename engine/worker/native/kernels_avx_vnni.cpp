// Products with AVX2 and AVX-VNNI.
#include <immintrin.h>

#include "kernels.h"

#pragma GCC target("avx2,fma,f16c,avxvnni")
#define GLIMPSE_KERNELS kAvxVnniKernels
#define GLIMPSE_LANES 8
#define GLIMPSE_BF16 0
#define GLIMPSE_DOTS 1

#include "kernels_level.h"
