// The levels of ARM: their detection and their kernels.
#if defined(__APPLE__)
#include <sys/sysctl.h>
#else
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "attention.h"
#include "cpu.h"
#include "delta_net.h"
#include "linear.h"

namespace glimpse {
namespace {

bool has_dotprod() {
#if defined(__APPLE__)
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has;
#else
  return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#endif
}

}  // namespace

bool has_level(int level) { return level == kNeon || (level == kNeonDotprod && has_dotprod()); }

const Kernels& kernels_of(int level, DType /*dtype*/) {
  return level >= kNeonDotprod ? kNeonDotprodKernels : kNeonKernels;
}

template <>
const AttentionKernels<bf16>& attention_kernels(int /*level*/, int /*query_dim*/) {
  return kAttentionNeon;
}

template <>
const AttentionKernels<float>& attention_kernels(int /*level*/, int /*query_dim*/) {
  return kAttentionNeonFloat;
}

template <>
const DeltaNetKernels<bf16>& delta_net_kernels(int /*level*/) {
  return kDeltaNetNeon;
}

template <>
const DeltaNetKernels<float>& delta_net_kernels(int /*level*/) {
  return kDeltaNetNeonFloat;
}

}  // namespace glimpse
