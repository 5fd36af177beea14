// The kernels for processors with AVX2.
#include "kernels.h"

#pragma GCC target("avx2,fma")

namespace glimpse {
namespace {

#include "vectors.h"
#include "rows.h"
#include "finish.h"
#include "ahead.h"
#include "multiply.h"

void multiply(const Block& block, bool int8, Finishing&) { int8 ? multiply_plain<true>(block) : multiply_plain<false>(block); }

}  // namespace

extern const Kernels kAvx2Kernels{false, lay_out_row, split_row, nullptr, nullptr, multiply, finish_all};

}  // namespace glimpse
