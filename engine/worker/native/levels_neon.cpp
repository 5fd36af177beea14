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

#if defined(__APPLE__)

bool has(const char* feature) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value;
}

bool has_dotprod() { return has("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return has_dotprod() && has("hw.optional.arm.FEAT_I8MM"); }
bool has_bf16() { return has_i8mm() && has("hw.optional.arm.FEAT_BF16"); }

#else

// HWCAP2_I8MM and HWCAP2_BF16, which older headers lack.
constexpr unsigned long kI8mm = 1ul << 13, kBf16 = 1ul << 14;

bool has_dotprod() { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
bool has_i8mm() { return has_dotprod() && (getauxval(AT_HWCAP2) & kI8mm); }
bool has_bf16() { return has_i8mm() && (getauxval(AT_HWCAP2) & kBf16); }

#endif

}  // namespace

bool has_level(int level) {
  switch (level) {
    case kNeon:
      return true;
    case kNeonDotprod:
      return has_dotprod();
    case kNeonI8mm:
      return has_i8mm();
    case kNeonBf16:
      return has_bf16();
    default:
      return false;
  }
}

// The level that multiplies bfloat16 computes with float32 activations as the one below it does.
const Kernels& kernels_of(int level, DType dtype) {
  if (dtype == kFloat32 && level > kNeonI8mm) level = kNeonI8mm;
  switch (level) {
    case kNeonBf16:
      return kNeonBf16Kernels;
    case kNeonI8mm:
      return kNeonI8mmKernels;
    case kNeonDotprod:
      return kNeonDotprodKernels;
    default:
      return kNeonKernels;
  }
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
