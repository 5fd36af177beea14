// The levels of x86-64: their detection and their kernels. Linux enables AMX's large tile registers only for processes
// that request them.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "attention.h"
#include "cpu.h"
#include "delta_net.h"
#include "linear.h"

namespace glimpse {
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

bool has_level(int level) {
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
      return false;
  }
}

// Levels that multiply bfloat16 compute with float32 activations as those below them do.
const Kernels& kernels_of(int level, DType dtype) {
  if (dtype == kFloat32 && level > kAvx512Vnni) level = kAvx512Vnni;
  switch (level) {
    case kAmx:
      return kAmxKernels;
    case kAvx512Bf16:
      return kAvx512Bf16Kernels;
    case kAvx512Vnni:
      return kAvx512VnniKernels;
    case kAvx512:
      return kAvx512Kernels;
    case kAvxVnni:
      return kAvxVnniKernels;
    default:
      return kAvx2Kernels;
  }
}

template <>
const AttentionKernels<bf16>& attention_kernels(int level, int query_dim) {
  if (level >= kAmx && query_dim % 32 == 0) return kAttentionAmx;
  if (level >= kAvx512Bf16) return kAttentionAvx512Bf16;
  return level >= kAvx512 ? kAttentionAvx512 : kAttentionAvx2;
}

template <>
const AttentionKernels<float>& attention_kernels(int level, int /*query_dim*/) {
  return level >= kAvx512 ? kAttentionAvx512Float : kAttentionAvx2Float;
}

template <>
const DeltaNetKernels<bf16>& delta_net_kernels(int level) {
  return level >= kAvx512 ? kDeltaNetAvx512 : kDeltaNetAvx2;
}

template <>
const DeltaNetKernels<float>& delta_net_kernels(int level) {
  return level >= kAvx512 ? kDeltaNetAvx512Float : kDeltaNetAvx2Float;
}

}  // namespace glimpse
