// Products with AVX-512, and its VNNI for int8 weights.
#include <immintrin.h>

#include "kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c")
#define GLIMPSE_AVX512 1
#define GLIMPSE_BF16 0

namespace glimpse {
namespace {

#include "vectors.h"
#include "rows.h"
#include "finish.h"
#include "multiply.h"
#include "multiply_int8.h"

void multiply(const Block& block, bool int8) { int8 ? multiply_int8(block) : multiply_float(block, false); }

}  // namespace

extern const Kernels kAvx512VnniKernels{false,   true,         4,        kFewRows, lay_out_row, split_row, nullptr,
                                        nullptr, unpack_panel, multiply, nullptr,  finish_all};

}  // namespace glimpse
