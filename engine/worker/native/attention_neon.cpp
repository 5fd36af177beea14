// Attention with NEON: vectors of 4 lanes.
#include <arm_neon.h>

#include <cmath>

#include "attention_kernels.h"

namespace glimpse {
namespace {

#include "attention_lanes_neon.h"
#include "attention_lanes.h"

template <class Body>
inline void for_vectors(int columns, const Body& body) {
  for (int column = 0; column < columns; column += Quad::kLanes) body(Quad{}, column);
}

template <class T>
void multiply(const T* const* a, int num_segments, int depth, long stride, int num_rows, const float* b, int columns,
              Ahead<T> ahead, float* panel, float* c) {
  const int whole = num_segments * depth;
  for (int row = 0; row < num_rows; row += kPanelRows, c += kPanelRows * columns) {
    widen_panel(a, row * stride, num_segments, depth, stride, kPanelRows, ahead, panel);
    int column = 0;
    for (; column + 8 <= columns; column += 8)
      multiply_tile<Quad, kPanelRows, 2>(panel, whole, b + column, columns, c + column);
    if (column < columns) multiply_tile<Quad, kPanelRows, 1>(panel, whole, b + column, columns, c + column);
  }
}

#include "attention_fma.h"

}  // namespace

const AttentionKernels<bf16> kAttentionNeon = float_kernels<bf16>();
const AttentionKernels<float> kAttentionNeonFloat = float_kernels<float>();

}  // namespace glimpse
