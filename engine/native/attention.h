// Attention as work to share between threads: jobs, cut into tasks. Knows no instructions and no caller's layout.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_kernels.h"
#include "cpu.h"

namespace glimpse {

constexpr int kMaxBlockSize = 128;

// The keys and values of one head of one sequence, in blocks.
struct KeySource {
  const bf16* keys;    // [blocks, block_size, query_dim], a block every `key_stride` numbers
  const bf16* values;  // [blocks, value_dim, block_size], a block every `value_stride` numbers
  long key_stride, value_stride;
  const std::int32_t* blocks;  // which block each part of the sequence is in; null: one after the other
  int block_size;              // 32, 64, 96 or 128
  int num_keys;
};

// Query heads of one sequence that share its keys. Column c is head c % num_heads of token c / num_heads.
struct Job {
  KeySource source;
  const bf16* query;  // [tokens, num_heads, head_dim], a token every `query_stride` numbers
  bf16* output;       // likewise, every `output_stride`
  long query_stride, output_stride;
  int num_tokens, num_heads;
  bool causal;  // a token sees keys up to its own, the last token all; else each sees all
};

const AttentionKernels& attention_kernels(int level, int query_dim);

// Computes all jobs, on all threads. What a column becomes depends on its own query, keys and values only.
void run_jobs(const AttentionKernels& kernels, const HeadShape& shape, int head_dim, const std::vector<Job>& jobs);

// log2(e) / sqrt(head_dim): what scores are multiplied with for powers of two.
float score_scale(int head_dim);

}  // namespace glimpse
