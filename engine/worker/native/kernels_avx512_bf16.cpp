// Products with AVX-512 and its dot products of bfloat16 and of int8.
#include <immintrin.h>

#include "kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,fma,f16c")
#define GLIMPSE_LANES 16
#define GLIMPSE_BF16 1
#define GLIMPSE_DOTS 1

namespace glimpse {
namespace {

#include "kernels_bf16.h"

}  // namespace

extern const Kernels kAvx512Bf16Kernels = kBf16Kernels;

}  // namespace glimpse
