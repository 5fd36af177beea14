// Attention with AVX-512, for processors without its bf16 dot products: vectors of 16 lanes.
#include <immintrin.h>

#include <cmath>

#include "attention_kernels.h"

// GCC 12 warns about its own _mm512_undefined_ps.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")

namespace glimpse {
namespace {

#include "attention_lanes_x86.h"
#include "attention_lanes.h"

struct Zmm {
  using Vector = __m512;
  static constexpr int kLanes = 16;

  static Vector splat(float value) { return _mm512_set1_ps(value); }
  static Vector load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Vector value) { _mm512_storeu_ps(to, value); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static Vector fms(Vector a, Vector b, Vector c) { return _mm512_fmsub_ps(a, b, c); }
  static Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }  // b if one of them is NaN

  static Vector power_from_low_bits(Vector value) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(value), 23));
  }

  static Vector finite_or_zero(Vector max) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(max, splat(-INFINITY), _CMP_NEQ_UQ), max);
  }

  static Vector load_visible(const float* from, const int* limits, int key) {
    const __mmask16 seen = _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(limits), _mm512_set1_epi32(key));
    return _mm512_mask_loadu_ps(splat(-INFINITY), seen, from);
  }
};

template <class Body>
inline void for_vectors(int columns, const Body& body) {
  int column = 0;
  for (; column + Zmm::kLanes <= columns; column += Zmm::kLanes) body(Zmm{}, column);
  if (column < columns) body(Ymm{}, column);
}

template <class T>
void multiply(const T* const* a, int num_segments, int depth, long stride, int num_rows, const float* b, int columns,
              Ahead<T> ahead, float* panel, float* c) {
  const int whole = num_segments * depth;
  for (int row = 0; row < num_rows; row += kPanelRows, c += kPanelRows * columns) {
    widen_panel(a, row * stride, num_segments, depth, stride, kPanelRows, ahead, panel);
    if (columns == 32) {
      multiply_tile<Zmm, kPanelRows, 2>(panel, whole, b, columns, c);
    } else {
      for_vectors(columns, [&](auto lanes, int column) {
        multiply_tile<decltype(lanes), kPanelRows, 1>(panel, whole, b + column, columns, c + column);
      });
    }
  }
}

#include "attention_fma.h"

}  // namespace

const AttentionKernels<bf16> kAttentionAvx512 = float_kernels<bf16>();
const AttentionKernels<float> kAttentionAvx512Float = float_kernels<float>();

}  // namespace glimpse
