// Single numbers of activations, bf16 or float, in loops that the compiler vectorizes.
#pragma once

#include <cstdint>
#include <cstring>

#include "types.h"

namespace glimpse {

__attribute__((always_inline)) inline float wide(float value) { return value; }
__attribute__((always_inline)) inline float wide(bf16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// Rounds to nearest, ties to even. NaN stays NaN.
__attribute__((always_inline)) inline bf16 narrow(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<bf16>(value == value ? rounded : 0x7fc0);
}

__attribute__((always_inline)) inline void assign(float& to, float value) { to = value; }
__attribute__((always_inline)) inline void assign(bf16& to, float value) { to = narrow(value); }

}  // namespace glimpse
