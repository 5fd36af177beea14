// Rounds keys and values to 8 bits and widens them.
#include "int8.h"

#include <cmath>
#include <cstring>

#include "attention_kernels.h"
#include "numbers.h"
#include "vectorized.h"

namespace glimpse {
namespace {

constexpr float kLeastMagnitude = 1e-30f;  // so that no factor is infinite

template <class T>
INLINED void quantize(const T* head, int head_dim, int8_t* rounded, float& scale) {
  float largest = 0.0f;
  for (int i = 0; i < head_dim; ++i) {
    const float magnitude = std::fabs(wide(head[i]));
    largest = magnitude > largest ? magnitude : largest;
  }
  scale = largest / 127.0f;
  const float factor = 127.0f / (largest > kLeastMagnitude ? largest : kLeastMagnitude);
  // Adding and subtracting 1.5 · 2^23 rounds to nearest, ties to even.
  constexpr float kRound = 12582912.0f;
  for (int i = 0; i < head_dim; ++i) {
    rounded[i] = static_cast<int8_t>(static_cast<int>((wide(head[i]) * factor + kRound) - kRound));
  }
}

VECTORIZED void quantize_clone(const bf16* head, int head_dim, int8_t* rounded, float& scale) {
  quantize(head, head_dim, rounded, scale);
}
VECTORIZED void quantize_clone(const float* head, int head_dim, int8_t* rounded, float& scale) {
  quantize(head, head_dim, rounded, scale);
}

template <class T>
void store(const T* head, int head_dim, int8_t* to, long stride) {
  int8_t bytes[kMaxHeadDim + kScaleBytes];
  float scale;
  quantize_clone(head, head_dim, bytes, scale);
  std::memcpy(bytes + head_dim, &scale, kScaleBytes);
  for (int i = 0; i < head_dim + kScaleBytes; ++i) to[i * stride] = bytes[i];
}

template <class T>
INLINED void widen_rows(const int8_t* row, int count, int head_dim, T* __restrict to) {
  for (int key = 0; key < count; ++key, row += head_dim + kScaleBytes, to += head_dim) {
    float scale;
    std::memcpy(&scale, row + head_dim, kScaleBytes);
    for (int i = 0; i < head_dim; ++i) assign(to[i], static_cast<float>(row[i]) * scale);
  }
}

template <class T>
INLINED void widen_columns(const int8_t* column, const float* scales, int head_dim, int block_size, T* __restrict to) {
  for (int i = 0; i < head_dim; ++i, column += block_size, to += kBlockKeys) {
    for (int key = 0; key < kBlockKeys; ++key) assign(to[key], static_cast<float>(column[key]) * scales[key]);
  }
}

VECTORIZED void widen_rows_clone(const int8_t* row, int count, int head_dim, bf16* to) {
  widen_rows(row, count, head_dim, to);
}
VECTORIZED void widen_rows_clone(const int8_t* row, int count, int head_dim, float* to) {
  widen_rows(row, count, head_dim, to);
}
VECTORIZED void widen_columns_clone(const int8_t* column, const float* scales, int head_dim, int block_size, bf16* to) {
  widen_columns(column, scales, head_dim, block_size, to);
}
VECTORIZED void widen_columns_clone(const int8_t* column, const float* scales, int head_dim, int block_size,
                                    float* to) {
  widen_columns(column, scales, head_dim, block_size, to);
}

template <class T>
void widen_block(const int8_t* block, int first, int count, int head_dim, int block_size, T* to) {
  const int8_t* planes = block + static_cast<long>(head_dim) * block_size + first;
  float scales[kBlockKeys] = {};
  for (int key = 0; key < count; ++key) {
    std::uint32_t bits = 0;
    for (int byte = 0; byte < kScaleBytes; ++byte)
      bits |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(planes[byte * block_size + key])) << 8 * byte;
    std::memcpy(&scales[key], &bits, sizeof bits);
  }
  widen_columns_clone(block + first, scales, head_dim, block_size, to);
}

}  // namespace

void quantize_head(const bf16* head, int head_dim, int8_t* to, long stride) { store(head, head_dim, to, stride); }
void quantize_head(const float* head, int head_dim, int8_t* to, long stride) { store(head, head_dim, to, stride); }

void widen_keys(const int8_t* block, int first, int count, int head_dim, bf16* wide) {
  widen_rows_clone(block + static_cast<long>(first) * (head_dim + kScaleBytes), count, head_dim, wide);
}
void widen_keys(const int8_t* block, int first, int count, int head_dim, float* wide) {
  widen_rows_clone(block + static_cast<long>(first) * (head_dim + kScaleBytes), count, head_dim, wide);
}

void widen_values(const int8_t* block, int first, int count, int head_dim, int block_size, bf16* wide) {
  widen_block(block, first, count, head_dim, block_size, wide);
}
void widen_values(const int8_t* block, int first, int count, int head_dim, int block_size, float* wide) {
  widen_block(block, first, count, head_dim, block_size, wide);
}

}  // namespace glimpse
