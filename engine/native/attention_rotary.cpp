// Applies rotary embedding to queries and keys, and writes keys and values to the paged KV cache.
#include <cstdint>
#include <cstring>

namespace {

using bf16 = std::uint16_t;

constexpr int kMaxHeadDim = 256;
constexpr long kTokensPerThread = 16;  // fewer tokens do not repay waking a thread

// The compiler vectorizes these loops for the machine's vector width. fp-contract is off, so that products are rounded
// before they are added, as in torch: queries and keys are bit-identical to the reference implementation.
#define VECTORIZED __attribute__((target_clones("arch=skylake-avx512", "avx2", "default"), optimize("fp-contract=off")))

inline float widen(bf16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// Rounds to nearest, ties to even. NaN stays NaN.
inline bf16 narrow(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<bf16>(value == value ? rounded : 0x7fc0);
}

// Rotates the pairs (x[i], x[i + half]) of one head.
VECTORIZED void rotate_head(const bf16* x, const float* cos, const float* sin, int half, bf16* __restrict rotated) {
  for (int i = 0; i < half; ++i) {
    const float first = widen(x[i]), second = widen(x[i + half]);
    const float rotated_first = first * cos[i] - second * sin[i];
    const float rotated_second = second * cos[i] + first * sin[i];
    rotated[i] = narrow(rotated_first);
    rotated[i + half] = narrow(rotated_second);
  }
}

}  // namespace

// qkv: [tokens, num_heads + 2 · num_kv_heads, head_dim]. cos, sin: [tokens, head_dim / 2]. query: [tokens, num_heads,
// head_dim]. keys: [blocks, num_kv_heads, block_size, head_dim]. values: [blocks, num_kv_heads, head_dim, block_size].
extern "C" void glimpse_rotate_and_store(const bf16* qkv, const float* cos, const float* sin, const std::int64_t* slots,
                                         long num_tokens, int num_heads, int num_kv_heads, int head_dim, int block_size,
                                         bf16* keys, bf16* values, bf16* query) {
  const int half = head_dim / 2;
  const long block = static_cast<long>(block_size) * head_dim;  // of one head
#pragma omp parallel for schedule(static) if (num_tokens > kTokensPerThread)
  for (long token = 0; token < num_tokens; ++token) {
    const bf16* head = qkv + token * (num_heads + 2 * num_kv_heads) * head_dim;
    const float* token_cos = cos + token * half;
    const float* token_sin = sin + token * half;
    for (int i = 0; i < num_heads; ++i, head += head_dim) {
      rotate_head(head, token_cos, token_sin, half, query + (token * num_heads + i) * head_dim);
    }
    const long first_block = slots[token] / block_size * num_kv_heads;
    const long place = slots[token] % block_size;
    for (int i = 0; i < num_kv_heads; ++i, head += head_dim) {
      rotate_head(head, token_cos, token_sin, half, keys + (first_block + i) * block + place * head_dim);
    }
    for (int i = 0; i < num_kv_heads; ++i, head += head_dim) {
      bf16* column = values + (first_block + i) * block + place;
      for (int dim = 0; dim < head_dim; ++dim) column[dim * block_size] = head[dim];
    }
  }
}

// Rotates the first num_heads heads of each row of x, [tokens, row_heads, head_dim], in place.
extern "C" void glimpse_rotate(bf16* x, const float* cos, const float* sin, long num_tokens, int num_heads,
                               int row_heads, int head_dim) {
  const int half = head_dim / 2;
#pragma omp parallel for schedule(static) if (num_tokens > kTokensPerThread)
  for (long token = 0; token < num_tokens; ++token) {
    bf16* head = x + token * row_heads * head_dim;
    for (int i = 0; i < num_heads; ++i, head += head_dim) {
      bf16 before[kMaxHeadDim];
      std::memcpy(before, head, sizeof(bf16) * head_dim);
      rotate_head(before, cos + token * half, sin + token * half, half, head);
    }
  }
}
