// Gated delta nets with AVX-512.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "delta_net.h"

#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")

namespace glimpse {
namespace {

#include "delta_net_kernels.h"

}  // namespace

extern const DeltaNetKernels<bf16> kDeltaNetAvx512 = kKernels<bf16>;
extern const DeltaNetKernels<float> kDeltaNetAvx512Float = kKernels<float>;

}  // namespace glimpse
