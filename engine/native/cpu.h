// Instruction set levels; each level includes the lower ones.
#pragma once

namespace glimpse {

enum Level : int {
  kNone = 0,
  kAvx2 = 1,        // AVX2, FMA
  kAvx512Bf16 = 2,  // AVX-512 F, BW, DQ, VL, BF16
  kAmx = 3,         // also AMX bf16 and int8, enabled by the operating system
};

}  // namespace glimpse
