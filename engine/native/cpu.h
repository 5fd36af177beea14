// What the processor can do, as one number: each level includes those below it.
#pragma once

namespace glimpse {

enum Level : int {
  kNone = 0,
  kAvx2 = 1,        // AVX2, FMA
  kAvx512Bf16 = 2,  // AVX-512 F, BW, DQ, VL, BF16
  kAmx = 3,         // and AMX bf16 and int8, which the kernel lets this process use
};

}  // namespace glimpse
