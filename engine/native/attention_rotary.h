// Rotary embedding of one head of one token, for callers that divide heads over threads.
#pragma once

#include <cstdint>

namespace glimpse {

using bf16 = std::uint16_t;

// Some tokens' queries, keys and values, and where they go.
struct RotaryStore {
  const bf16* qkv;            // [tokens, num_heads + 2 * num_kv_heads, head_dim]
  const float *cos, *sin;     // [tokens, head_dim / 2]
  const std::int64_t* slots;  // [tokens]: block * block_size + offset in the block
  int num_heads, num_kv_heads, head_dim, block_size;
  bf16* keys;    // [blocks, num_kv_heads, block_size, head_dim]
  bf16* values;  // [blocks, num_kv_heads, head_dim, block_size]
  bf16* query;   // [tokens, num_heads, head_dim]

  int all_heads() const { return num_heads + 2 * num_kv_heads; }
};

// Rotates a query or key head and stores it, or stores a value head. Heads are numbered as in a row of `qkv`.
void rotate_and_store_head(const RotaryStore& store, long token, int index);

}  // namespace glimpse
