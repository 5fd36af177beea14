// Keys and values of 8 bits. A head of a token has a scale, the largest magnitude over 127, whose 4 bytes are stored as
// its last dimensions: a key has [head_dim + 4] bytes, and values have [head_dim + 4][block_size] bytes in a block.
#pragma once

#include "types.h"

namespace glimpse {

constexpr int kScaleBytes = 4;

// Rounds a head's numbers and stores them and their scale, each byte `stride` after the one before.
void quantize_head(const bf16* head, int head_dim, int8_t* to, long stride);
void quantize_head(const float* head, int head_dim, int8_t* to, long stride);

// Writes the integers of `count` keys of a block from slot `first` on, [count][head_dim], and their scales.
template <class T>
void widen_keys(const int8_t* block, int first, int count, int head_dim, T* wide, float* scales);

// Writes the integers of the values of 32 slots of a block from slot `first` on, [head_dim][32], and the scales of the
// first `count`. The others' integers are any.
template <class T>
void widen_values(const int8_t* block, int first, int count, int head_dim, int block_size, T* wide, float* scales);

}  // namespace glimpse
