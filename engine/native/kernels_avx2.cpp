// Products with AVX2.
#include <immintrin.h>

#include "kernels.h"

#pragma GCC target("avx2,fma,f16c")
#define GLIMPSE_AVX512 0
#define GLIMPSE_BF16 0
#define GLIMPSE_VNNI 0

namespace glimpse {
namespace {

#include "vectors.h"
#include "rows.h"
#include "finish.h"
#include "multiply.h"
#include "multiply_int4.h"

void multiply(const Block& block, const Weight& weight) {
  if (is_int4(weight)) multiply_int4(block, weight);
  else multiply_float(block, is_int8(weight));
}

}  // namespace

extern const Kernels kAvx2Kernels{
    false,   false,        4,        kFewRows, lay_out_row, split_row, quantize_row, nullptr,
    nullptr, unpack_panel, multiply, nullptr,  finish_all,
};

}  // namespace glimpse
