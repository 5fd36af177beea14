// Gated delta nets with AVX-512.
#include <immintrin.h>

#include "delta_net.h"

#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#define GLIMPSE_DELTA_NET kDeltaNetAvx512
#define GLIMPSE_DELTA_NET_FLOAT kDeltaNetAvx512Float
#define GLIMPSE_LANES 16
#define GLIMPSE_BF16 0
#define GLIMPSE_DOTS 0

#include "delta_net_level.h"
