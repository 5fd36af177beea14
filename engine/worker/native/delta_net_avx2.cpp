// Gated delta nets with AVX2.
#include <immintrin.h>

#include "delta_net.h"

#pragma GCC target("avx2,fma")
#define GLIMPSE_DELTA_NET kDeltaNetAvx2
#define GLIMPSE_DELTA_NET_FLOAT kDeltaNetAvx2Float
#define GLIMPSE_LANES 8
#define GLIMPSE_BF16 0
#define GLIMPSE_DOTS 0

#include "delta_net_level.h"
