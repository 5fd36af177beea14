// The gated delta nets of a level. Its file includes this last, after it has selected the level's instructions, set
// what vectors.h asks for, and set GLIMPSE_DELTA_NET and GLIMPSE_DELTA_NET_FLOAT to the kernels' names.
#pragma once

namespace glimpse {
namespace {

#include "vectors.h"
#if GLIMPSE_LANES == 4
#include "transpose_neon.h"
#else
#include "transpose_x86.h"
#endif
#include "delta_net_kernels.h"
#include "delta_net_chunks.h"

}  // namespace

extern const DeltaNetKernels<bf16> GLIMPSE_DELTA_NET = kKernels<bf16>;
extern const DeltaNetKernels<float> GLIMPSE_DELTA_NET_FLOAT = kKernels<float>;

}  // namespace glimpse
