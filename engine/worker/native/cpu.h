// Instruction set levels. A level's kernels need what is named here; those of the levels above it need that too, except
// AVX-VNNI, which a processor with AVX-512 may lack.
#pragma once

namespace glimpse {

enum Level : int {
  kNone = 0,
  kAvx2 = 1,        // AVX2, FMA, F16C
  kAvxVnni = 2,     // also AVX-VNNI: int8 dot products on processors without AVX-512
  kAvx512 = 3,      // AVX-512 F, BW, DQ, VL
  kAvx512Vnni = 4,  // also VNNI
  kAvx512Bf16 = 5,  // also BF16
  kAmx = 6,         // also AMX bf16 and int8, enabled by the operating system
  // Of ARM:
  kNeon = 7,         // ARMv8-A with NEON
  kNeonDotprod = 8,  // also dot products of bytes, of ARMv8.2
  kNeonI8mm = 9,     // also products of matrices of bytes, of ARMv8.6
  kNeonBf16 = 10,    // also those of matrices of bfloat16, of ARMv8.6
};

// The file of the architecture has this, and the kernels of its levels.
bool has_level(int level);

}  // namespace glimpse
