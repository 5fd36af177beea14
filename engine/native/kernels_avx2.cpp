// Kernels for processors with AVX2.
#include "kernels.h"

#pragma GCC target("avx2,fma")

namespace glimpse {
namespace {

#include "vectors.h"
#include "rows.h"
#include "finish.h"
#include "multiply.h"

void multiply(const Block& block, bool int8) { int8 ? multiply_plain<true>(block) : multiply_plain<false>(block); }

void multiply_and_finish(const Block& block, bool int8, Finishing&) { multiply(block, int8); }

}  // namespace

extern const Kernels kAvx2Kernels{false,   lay_out_row, split_row,           nullptr,
                                  nullptr, multiply,    multiply_and_finish, finish_all};

}  // namespace glimpse
