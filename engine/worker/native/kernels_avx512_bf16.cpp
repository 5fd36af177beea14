// Products with AVX-512 and its dot products of bfloat16 and of int8.
#include <immintrin.h>

#include "kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,fma,f16c")
#define GLIMPSE_KERNELS kAvx512Bf16Kernels
#define GLIMPSE_LANES 16
#define GLIMPSE_BF16 1
#define GLIMPSE_DOTS 1

#include "kernels_level.h"
