// Gated delta nets with NEON.
#include <arm_neon.h>

#include "delta_net.h"

#define GLIMPSE_DELTA_NET kDeltaNetNeon
#define GLIMPSE_DELTA_NET_FLOAT kDeltaNetNeonFloat
#define GLIMPSE_LANES 4
#define GLIMPSE_BF16 0
#define GLIMPSE_DOTS 0

#include "delta_net_level.h"
