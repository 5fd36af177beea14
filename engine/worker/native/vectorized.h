// For loops that the compiler vectorizes for the machine's vector width. fp-contract is off, so that products are
// rounded before they are added, as in torch: results are bit-identical to the reference implementation.
#pragma once

#if defined(__x86_64__)
#define VECTORIZED __attribute__((target_clones("arch=skylake-avx512", "avx2", "default"), optimize("fp-contract=off")))
#else
#pragma clang fp contract(off)
#define VECTORIZED __attribute__((optimize("fp-contract=off")))
#endif
#define INLINED __attribute__((always_inline)) inline  // compiled for the same machines as its caller
