// Gated delta nets with NEON.
#include <arm_neon.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "delta_net.h"
#include "numbers.h"

#define GLIMPSE_LANES 4
#define GLIMPSE_BF16 0
#define GLIMPSE_DOTS 0

namespace glimpse {
namespace {

#include "vectors.h"
#include "transpose_neon.h"
#include "delta_net_kernels.h"
#include "delta_net_chunks.h"

}  // namespace

extern const DeltaNetKernels<bf16> kDeltaNetNeon = kKernels<bf16>;
extern const DeltaNetKernels<float> kDeltaNetNeonFloat = kKernels<float>;

}  // namespace glimpse
