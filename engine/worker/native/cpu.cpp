// Detects instruction set levels. Linux enables AMX's large tile registers only for processes that request them.
#include "cpu.h"

#include <cpuid.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr long kTileData = 18;               // XFEATURE_XTILEDATA

struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;

  Cpuid(unsigned leaf, unsigned subleaf) { __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx); }
};

// The compilers' names for extensions differ by version; those that not all of them know are read from CPUID. The
// operating system keeps their registers where it keeps those of AVX2 and AVX-512, which the compilers' function
// checks.

bool has_avx2() {
  const bool f16c = Cpuid(1, 0).ecx >> 29 & 1;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
}

bool has_avx_vnni() { return has_avx2() && (Cpuid(7, 1).eax >> 4 & 1); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512_vnni() { return has_avx512() && (Cpuid(7, 0).ecx >> 11 & 1); }

bool has_avx512_bf16() { return has_avx512_vnni() && (Cpuid(7, 1).eax >> 5 & 1); }

bool has_amx() {
  constexpr unsigned kAll = 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, AMX-TILE, AMX-INT8
  return has_avx512_bf16() && (Cpuid(7, 0).edx & kAll) == kAll &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
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
      return has_avx_vnni();
    case kAvx512:
      return has_avx512();
    case kAvx512Vnni:
      return has_avx512_vnni();
    case kAvx512Bf16:
      return has_avx512_bf16();
    case kAmx:
      return has_amx();
    default:
      return 0;
  }
}

// Sets the number of threads of the calling thread's parallel regions. g++'s are torch's already; clang++'s are not.
extern "C" void glimpse_set_num_threads(int num_threads) { omp_set_num_threads(num_threads); }

// Starts a team of OpenMP threads, which sleep until the calling thread ends.
extern "C" void glimpse_start_team(int num_threads) {
#pragma omp parallel num_threads(num_threads)
  {
#pragma omp barrier
  }
}
