// Gated delta nets with AVX2.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "delta_net.h"
#include "numbers.h"

#pragma GCC target("avx2,fma")
#define GLIMPSE_LANES 8
#define GLIMPSE_BF16 0
#define GLIMPSE_DOTS 0

namespace glimpse {
namespace {

#include "vectors.h"
#include "transpose_x86.h"
#include "delta_net_kernels.h"
#include "delta_net_chunks.h"

}  // namespace

extern const DeltaNetKernels<bf16> kDeltaNetAvx2 = kKernels<bf16>;
extern const DeltaNetKernels<float> kDeltaNetAvx2Float = kKernels<float>;

}  // namespace glimpse
