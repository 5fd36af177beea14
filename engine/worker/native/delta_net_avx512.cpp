// Gated delta nets with AVX-512.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "delta_net.h"
#include "numbers.h"

#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#define GLIMPSE_LANES 16
#define GLIMPSE_BF16 0
#define GLIMPSE_DOTS 0

namespace glimpse {
namespace {

#include "vectors.h"
#include "transpose_x86.h"
#include "delta_net_kernels.h"
#include "delta_net_chunks.h"

}  // namespace

extern const DeltaNetKernels<bf16> kDeltaNetAvx512 = kKernels<bf16>;
extern const DeltaNetKernels<float> kDeltaNetAvx512Float = kKernels<float>;

}  // namespace glimpse
