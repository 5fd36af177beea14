// Applies norms and rotary embedding to heads of queries and keys, and writes keys and values to the paged KV cache.
#include "attention_rotary.h"

#include <cmath>
#include <cstring>

#include "int8.h"
#include "numbers.h"
#include "vectorized.h"

namespace {

using glimpse::bf16;
using glimpse::DType;
using glimpse::narrow;
using glimpse::Norm;
using glimpse::wide;

constexpr int kMaxHeadDim = 512;
constexpr long kTokensPerThread = 16;  // fewer tokens do not repay waking a thread

// Rotates the pairs (x[i], x[i + half]) of one head.
VECTORIZED void rotate_head(const bf16* x, const float* cos, const float* sin, int half, bf16* __restrict rotated) {
  for (int i = 0; i < half; ++i) {
    const float first = wide(x[i]), second = wide(x[i + half]);
    const float rotated_first = first * cos[i] - second * sin[i];
    const float rotated_second = second * cos[i] + first * sin[i];
    rotated[i] = narrow(rotated_first);
    rotated[i + half] = narrow(rotated_second);
  }
}

VECTORIZED void rotate_head(const float* x, const float* cos, const float* sin, int half, float* __restrict rotated) {
  for (int i = 0; i < half; ++i) {
    rotated[i] = x[i] * cos[i] - x[i + half] * sin[i];
    rotated[i + half] = x[i + half] * cos[i] + x[i] * sin[i];
  }
}

// In bf16, rounded where the reference implementation rounds.
inline bf16 weigh(bf16 value, float scale, bf16 weight) {
  return narrow(wide(narrow(wide(value) * scale)) * wide(weight));
}
inline float weigh(float value, float scale, float weight) { return value * scale * weight; }

constexpr int kSums = 16;  // squares are added in the same order on every processor

// 1 / rms of one head.
template <class T>
INLINED float norm_scale(const T* x, int head_dim, float eps) {
  float sums[kSums] = {};
  int first = 0;
  for (; first + kSums <= head_dim; first += kSums)
    for (int i = 0; i < kSums; ++i) sums[i] += wide(x[first + i]) * wide(x[first + i]);
  for (int i = 0; first + i < head_dim; ++i) sums[i] += wide(x[first + i]) * wide(x[first + i]);
  for (int count = kSums / 2; count > 0; count /= 2)
    for (int i = 0; i < count; ++i) sums[i] += sums[i + count];
  return 1.0f / std::sqrt(sums[0] / static_cast<float>(head_dim) + eps);
}

template <class T>
INLINED void normalize(T* __restrict x, const T* __restrict weights, float eps, int head_dim) {
  const float scale = norm_scale(x, head_dim, eps);
  for (int i = 0; i < head_dim; ++i) x[i] = weigh(x[i], scale, weights[i]);
}

// Normalizes one head in place.
VECTORIZED void normalize_head(bf16* x, const Norm& norm, int head_dim) {
  normalize(x, static_cast<const bf16*>(norm.weight), norm.eps, head_dim);
}

VECTORIZED void normalize_head(float* x, const Norm& norm, int head_dim) {
  normalize(x, static_cast<const float*>(norm.weight), norm.eps, head_dim);
}

template <class T>
void rotate_in_place(T* x, const float* cos, const float* sin, long num_tokens, int num_heads, int row_heads,
                     int head_dim) {
  const int half = head_dim / 2;
#pragma omp parallel for schedule(static) if (num_tokens > kTokensPerThread)
  for (long token = 0; token < num_tokens; ++token) {
    T* head = x + token * row_heads * head_dim;
    for (int i = 0; i < num_heads; ++i, head += head_dim) {
      T before[kMaxHeadDim];
      std::memcpy(before, head, sizeof(T) * head_dim);
      rotate_head(before, cos + token * half, sin + token * half, half, head);
    }
  }
}

}  // namespace

template <class T>
void glimpse::rotate_and_store_head(const RotaryStore<T>& store, long token, int index) {
  const int num_heads = store.num_heads, num_kv_heads = store.num_kv_heads, head_dim = store.head_dim;
  const int half = head_dim / 2;
  T* head = store.qkv + (token * (num_heads + 2 * num_kv_heads) + index) * head_dim;
  const float *cos = store.cos + token * half, *sin = store.sin + token * half;
  const Norm* norm = index < num_heads                  ? store.query_norm
                     : index < num_heads + num_kv_heads ? store.key_norm
                                                        : store.value_norm;
  if (norm) normalize_head(head, *norm, head_dim);
  if (index < num_heads) {
    rotate_head(head, cos, sin, half, store.query + (token * num_heads + index) * head_dim);
    return;
  }
  const int kv_head = (index - num_heads) % num_kv_heads;
  const long block = store.slots[token] / store.block_size, place = store.slots[token] % store.block_size;
  const bool is_key = index < num_heads + num_kv_heads;
  if (store.is_int8) {
    T rotated[kMaxHeadDim];
    if (is_key) rotate_head(head, cos, sin, half, rotated);
    const long first = (block * num_kv_heads + kv_head) * store.block_size * (head_dim + kScaleBytes);
    auto* const to = static_cast<std::int8_t*>(is_key ? store.keys : store.values) + first;
    if (is_key) quantize_head(rotated, head_dim, to + place * (head_dim + kScaleBytes), 1);
    else quantize_head(head, head_dim, to + place, store.block_size);
    return;
  }
  const long first = (block * num_kv_heads + kv_head) * store.block_size * head_dim;
  if (is_key) {
    rotate_head(head, cos, sin, half, static_cast<T*>(store.keys) + first + place * head_dim);
    return;
  }
  T* column = static_cast<T*>(store.values) + first + place;
  for (int dim = 0; dim < head_dim; ++dim) column[dim * store.block_size] = head[dim];
}

template void glimpse::rotate_and_store_head(const RotaryStore<bf16>&, long, int);
template void glimpse::rotate_and_store_head(const RotaryStore<float>&, long, int);

// qkv: [tokens, num_heads + 2 · num_kv_heads, head_dim]. cos, sin: [tokens, head_dim / 2]. query: [tokens, num_heads,
// head_dim]. keys: [blocks, num_kv_heads, block_size, head_dim]. values: [blocks, num_kv_heads, head_dim, block_size].
// qkv, keys, values and query are of `dtype`; keys and values of 8 bits, with the scales of int8.h, if is_int8.
// query_norm, key_norm, value_norm: RMSNorms of heads, which are applied to qkv in place; null: none.
extern "C" void glimpse_rotate_and_store(DType dtype, void* qkv, const Norm* query_norm, const Norm* key_norm,
                                         const Norm* value_norm, const float* cos, const float* sin,
                                         const std::int64_t* slots, long num_tokens, int num_heads, int num_kv_heads,
                                         int head_dim, int block_size, int is_int8, void* keys, void* values,
                                         void* query) {
  glimpse::with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    const glimpse::RotaryStore<T> store = {
        static_cast<T*>(qkv), cos,      sin,        slots, num_heads, num_kv_heads,           head_dim,    block_size,
        query_norm,           key_norm, value_norm, keys,  values,    static_cast<T*>(query), is_int8 != 0};
#pragma omp parallel for schedule(static) if (num_tokens > kTokensPerThread)
    for (long token = 0; token < num_tokens; ++token)
      for (int index = 0; index < store.all_heads(); ++index) glimpse::rotate_and_store_head(store, token, index);
  });
}

// Rotates the first num_heads heads of each row of x, [tokens, row_heads, head_dim] of `dtype`, in place.
extern "C" void glimpse_rotate(DType dtype, void* x, const float* cos, const float* sin, long num_tokens, int num_heads,
                               int row_heads, int head_dim) {
  glimpse::with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    rotate_in_place(static_cast<T*>(x), cos, sin, num_tokens, num_heads, row_heads, head_dim);
  });
}
