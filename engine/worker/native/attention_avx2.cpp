// Attention with AVX2: vectors of 8 lanes.
#include <immintrin.h>

#include <cmath>

#include "attention_kernels.h"

#pragma GCC target("avx2,fma")

namespace glimpse {
namespace {

#include "attention_lanes_x86.h"
#include "attention_lanes.h"

template <class Body>
inline void for_vectors(int columns, const Body& body) {
  for (int column = 0; column < columns; column += Ymm::kLanes) body(Ymm{}, column);
}

template <int kRows>
void multiply_panel(const float* panel, int depth, const float* b, int columns, float* c) {
  int column = 0;
  for (; column + 16 <= columns; column += 16) {
    multiply_tile<Ymm, kRows, 2>(panel, depth, b + column, columns, c + column);
  }
  if (column < columns) multiply_tile<Ymm, kRows, 1>(panel, depth, b + column, columns, c + column);
}

// Rows of the next panel: 6, or 4 at the end, so that the sums of two vectors, the vectors and a broadcast float are in
// 16 registers, or 8 of one vector. `rows_left` is even and not 2.
inline int panel_rows(int rows_left, int columns) {
  if (columns == Ymm::kLanes) return 8;
  return rows_left == 8 || rows_left == 4 ? 4 : 6;
}

template <class T>
void multiply(const T* const* a, int num_segments, int depth, long stride, int num_rows, const float* b, int columns,
              Ahead<T> ahead, float* panel, float* c) {
  const int whole = num_segments * depth;
  for (int row = 0, count; row < num_rows; row += count) {
    count = panel_rows(num_rows - row, columns);
    widen_panel(a, row * stride, num_segments, depth, stride, count, ahead, panel);
    if (count == 8) {
      multiply_tile<Ymm, 8, 1>(panel, whole, b, columns, c + row * columns);
    } else if (count == 6) {
      multiply_panel<6>(panel, whole, b, columns, c + row * columns);
    } else {
      multiply_panel<4>(panel, whole, b, columns, c + row * columns);
    }
  }
}

#include "attention_fma.h"

}  // namespace

const AttentionKernels<bf16> kAttentionAvx2 = float_kernels<bf16>();
const AttentionKernels<float> kAttentionAvx2Float = float_kernels<float>();

}  // namespace glimpse
