// Detects instruction set levels. Linux enables AMX's large tile registers only for processes that request them.
#include "cpu.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr long kTileData = 18;               // XFEATURE_XTILEDATA

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_amx() {
  // CPUID leaf 7, EDX: 22 AMX-BF16, 24 AMX-TILE, 25 AMX-INT8; GCC 12 has no names for these.
  unsigned a = 7, b, c = 0, d;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  constexpr unsigned kAll = 1u << 22 | 1u << 24 | 1u << 25;
  return (d & kAll) == kAll && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

// Returns whether this machine has a level. Requests AMX when asked for it, so ask before threads compute.
extern "C" int glimpse_cpu_supports(int level) {
  using namespace glimpse;
  __builtin_cpu_init();
  switch (level) {
    case kAvx2:
      return has_avx2();
    case kAvxVnni:
      return has_avx2() && __builtin_cpu_supports("avxvnni");
    case kAvx512:
      return has_avx512();
    case kAvx512Vnni:
      return has_avx512() && __builtin_cpu_supports("avx512vnni");
    case kAvx512Bf16:
      return glimpse_cpu_supports(kAvx512Vnni) && __builtin_cpu_supports("avx512bf16");
    case kAmx:
      return glimpse_cpu_supports(kAvx512Bf16) && has_amx();
    default:
      return 0;
  }
}
