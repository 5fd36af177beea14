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

// Integers of 8 bits are exact in both types, so nothing is rounded.
INLINED void assign_integer(float& to, std::int8_t value) { to = value; }
INLINED void assign_integer(bf16& to, std::int8_t value) {
  const float exact = value;
  std::uint32_t bits;
  std::memcpy(&bits, &exact, sizeof bits);
  to = static_cast<bf16>(bits >> 16);
}

template <class T>
INLINED void widen_rows(const std::int8_t* row, long stride, int count, int width, T* __restrict to) {
  for (int i = 0; i < count; ++i, row += stride, to += width)
    for (int place = 0; place < width; ++place) assign_integer(to[place], row[place]);
}

VECTORIZED void widen_clone(const std::int8_t* row, long stride, int count, int width, bf16* to) {
  widen_rows(row, stride, count, width, to);
}
VECTORIZED void widen_clone(const std::int8_t* row, long stride, int count, int width, float* to) {
  widen_rows(row, stride, count, width, to);
}

}  // namespace

void quantize_head(const bf16* head, int head_dim, int8_t* to, long stride) { store(head, head_dim, to, stride); }
void quantize_head(const float* head, int head_dim, int8_t* to, long stride) { store(head, head_dim, to, stride); }

template <class T>
void widen_keys(const int8_t* block, int first, int count, int head_dim, T* wide, float* scales) {
  const int row = head_dim + kScaleBytes;
  const int8_t* keys = block + static_cast<long>(first) * row;
  widen_clone(keys, row, count, head_dim, wide);
  for (int key = 0; key < count; ++key) std::memcpy(&scales[key], keys + key * row + head_dim, kScaleBytes);
}

template <class T>
void widen_values(const int8_t* block, int first, int count, int head_dim, int block_size, T* wide, float* scales) {
  widen_clone(block + first, block_size, head_dim, kBlockKeys, wide);
  const int8_t* planes = block + static_cast<long>(head_dim) * block_size + first;
  for (int key = 0; key < count; ++key) {
    std::uint32_t bits = 0;
    for (int byte = 0; byte < kScaleBytes; ++byte)
      bits |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(planes[byte * block_size + key])) << 8 * byte;
    std::memcpy(&scales[key], &bits, sizeof bits);
  }
}

template void widen_keys(const int8_t*, int, int, int, bf16*, float*);
template void widen_keys(const int8_t*, int, int, int, float*, float*);
template void widen_values(const int8_t*, int, int, int, int, bf16*, float*);
template void widen_values(const int8_t*, int, int, int, int, float*, float*);

}  // namespace glimpse
