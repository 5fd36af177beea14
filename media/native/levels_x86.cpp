// The levels of x86-64: their detection and their kernels.
#include "kernels.h"

namespace glimpse {

int highest_level() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2")) return kNone;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  return has_avx512 ? kAvx512 : kAvx2;
}

const Kernel& kernel_of(int level) { return level == kAvx512 ? kAvx512Kernel : kAvx2Kernel; }

}  // namespace glimpse
