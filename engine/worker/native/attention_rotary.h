// Rotary embedding of one head of one token, for callers that divide heads over threads.
#pragma once

#include "types.h"

namespace glimpse {

// Some tokens' queries, keys and values, in bf16 or float, and where they go.
template <class T>
struct RotaryStore {
  T* qkv;                     // overwritten where heads have norms: [tokens, num_heads + 2 * num_kv_heads, head_dim]
  const float *cos, *sin;     // [tokens, head_dim / 2]
  const std::int64_t* slots;  // [tokens]: block * block_size + offset in the block
  int num_heads, num_kv_heads, head_dim, block_size;
  const Norm *query_norm, *key_norm, *value_norm;  // RMSNorms of heads, before a rotation; null: none
  void* keys;                                      // [blocks, num_kv_heads, block_size, head_dim]
  void* values;                                    // [blocks, num_kv_heads, head_dim, block_size]
  T* query;                                        // [tokens, num_heads, head_dim]
  bool is_int8;                                    // keys and values have 8 bits, with the scales of int8.h

  int all_heads() const { return num_heads + 2 * num_kv_heads; }
};

// Normalizes and rotates a query or key head and stores it, or stores a value head. Heads are numbered as in a row of
// `qkv`.
template <class T>
void rotate_and_store_head(const RotaryStore<T>& store, long token, int index);

}  // namespace glimpse
