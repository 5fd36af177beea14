// Products with AVX-512 and VNNI.
#include <immintrin.h>

#include "kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c")
#define GLIMPSE_AVX512 1
#define GLIMPSE_BF16 0
#define GLIMPSE_VNNI 1

namespace glimpse {
namespace {

#include "vectors.h"
#include "rows.h"
#include "finish.h"
#include "dots.h"
#include "multiply.h"
#include "multiply_int8.h"
#include "multiply_int4.h"

void multiply(const Block& block, const Weight& weight) {
  if (is_int4(weight)) multiply_int4(block, weight);
  else if (is_int8(weight)) multiply_int8(block);
  else multiply_float(block, false);
}

}  // namespace

extern const Kernels kAvx512VnniKernels{
    false,   true,         4,        kFewRows, lay_out_row, split_row, quantize_row, nullptr,
    nullptr, unpack_panel, multiply, nullptr,  finish_all,
};

}  // namespace glimpse
