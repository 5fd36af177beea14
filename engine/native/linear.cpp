// Products with packed weights and the fused operations that Python calls.
#include <omp.h>

#include "activations.h"
#include "cpu.h"
#include "kernels.h"
#include "multiplication.h"

namespace glimpse {
namespace {

const Kernels& kernels_of(int level) {
  switch (level) {
    case kAmx:
      return kAmxKernels;
    case kAvx512Bf16:
      return kAvx512Bf16Kernels;
    case kAvx512Vnni:
      return kAvx512VnniKernels;
    case kAvx512:
      return kAvx512Kernels;
    case kAvxVnni:
      return kAvxVnniKernels;
    default:
      return kAvx2Kernels;
  }
}

// One buffer for each calling thread and purpose.
thread_local Buffer first_buffers[3], second_buffers[3], sums_buffer, unpacked_buffer;

void multiply(const Kernels& kernels, const Activations& x, const Weight& weight, const Output& output) {
  Multiplication(kernels, x, weight, output, sums_buffer, unpacked_buffer).run();
}

// This thread's rows of the input.
void lay_out(const Activations& x, const bf16* input, int64_t count, const Norm* norm) {
  Range rows = share(x.rows());
  for (int64_t row = rows.begin; row < rows.end; ++row) x.lay_out(row, input, count, norm);
}

}  // namespace
}  // namespace glimpse

using namespace glimpse;

// y = activation(norm(x) Wᵀ + b) + residual for x [rows, in_features]; y is float32 in `wide` or bfloat16 in `narrow`.
extern "C" void glimpse_linear(int level, const Weight* weight, const Norm* norm, const bf16* x, int64_t rows,
                               int32_t activation, const bf16* residual, float* wide, bf16* narrow) {
  if (rows == 0) return;
  const Kernels& kernels = kernels_of(level);
  Activations input(kernels, *weight, rows, first_buffers);
  Output output{nullptr, 0, wide, narrow, residual, activation};
#pragma omp parallel
  {
    lay_out(input, x, weight->in_features, norm);
#pragma omp barrier
    multiply(kernels, input, *weight, output);
  }
}

// y = second(activation(first(norm(x)))) + residual for x [rows, in_features of `first`].
extern "C" void glimpse_mlp(int level, const Weight* first, const Weight* second, const Norm* norm, const bf16* x,
                            int64_t rows, int32_t activation, const bf16* residual, bf16* y) {
  if (rows == 0) return;
  const Kernels& kernels = kernels_of(level);
  Activations input(kernels, *first, rows, first_buffers);
  Activations inner(kernels, *second, rows, second_buffers);
  Output to_inner{inner.tiles(), inner.num_tiles(), nullptr, nullptr, nullptr, activation};
  Output to_y{nullptr, 0, nullptr, y, residual, kIdentity};
#pragma omp parallel
  {
    Range own = share(rows);
    lay_out(input, x, first->in_features, norm);
    for (int64_t row = own.begin; row < own.end; ++row) inner.clear_padding(row, second->in_features);
#pragma omp barrier
    multiply(kernels, input, *first, to_inner);
#pragma omp barrier
    if (inner.has_integers()) {
      for (int64_t row = own.begin; row < own.end; ++row) inner.make_integers(row);
#pragma omp barrier
    }
    multiply(kernels, inner, *second, to_y);
  }
}
