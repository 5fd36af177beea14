// Gated delta nets with AVX2.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "delta_net.h"

#pragma GCC target("avx2,fma")

namespace glimpse {
namespace {

#include "delta_net_kernels.h"

}  // namespace

extern const DeltaNetKernels<bf16> kDeltaNetAvx2 = kKernels<bf16>;
extern const DeltaNetKernels<float> kDeltaNetAvx2Float = kKernels<float>;

}  // namespace glimpse
