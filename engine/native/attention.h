// Attention as jobs for several threads, independent of instruction sets and of the caller's layout.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_kernels.h"
#include "cpu.h"

namespace glimpse {

constexpr int kMaxBlockSize = 128;

// The keys and values of one head of one sequence, in blocks.
struct KeySource {
  const bf16* keys;    // [blocks, block_size, query_dim] with a block stride of `key_stride` elements
  const bf16* values;  // [blocks, value_dim, block_size] with a block stride of `value_stride` elements
  long key_stride, value_stride;
  const std::int32_t* blocks;  // block table of the sequence; null: consecutive blocks
  int block_size;              // 32, 64, 96 or 128
  int num_keys;
};

// Query heads of one sequence that share its keys. Column c is head c % num_heads of token c / num_heads.
struct Job {
  KeySource source;
  const bf16* query;  // [tokens, num_heads, head_dim] with a token stride of `query_stride` elements
  bf16* output;       // like `query`, with stride `output_stride`
  long query_stride, output_stride;
  int num_tokens, num_heads;
  bool causal;  // whether a token attends to keys up to its own only; the last token attends to all
};

const AttentionKernels& attention_kernels(int level, int query_dim);

// Computes all jobs on all threads. A column's result depends on its own query, keys and values only.
void run_jobs(const AttentionKernels& kernels, const HeadShape& shape, int head_dim, const std::vector<Job>& jobs);

// Returns log2(e) / sqrt(head_dim): the factor of scores for powers of two.
float score_scale(int head_dim);

}  // namespace glimpse
