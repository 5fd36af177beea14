// Attention as jobs for several threads, independent of instruction sets and of the caller's layout.
#pragma once

#include <atomic>
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

// The heads of one layer's paged KV cache.
struct PagedHeads {
  const bf16* keys;    // [blocks, num_kv_heads, block_size, head_dim]
  const bf16* values;  // [blocks, num_kv_heads, head_dim, block_size]
  int num_heads, num_kv_heads, head_dim, block_size;
};

// A sequence whose last tokens are computed.
struct PagedSequence {
  const std::int32_t* blocks;  // its block table
  int num_keys;                // its tokens so far, those that are computed included
  int num_tokens;              // of which are computed
};

// Some columns of a job against some ranges of its keys.
struct Task {
  const Job* job;
  int first_column, num_columns;
  int first_range, num_ranges;
  int all_ranges;     // of these columns; other tasks compute the ranges beyond num_ranges
  Partial* partials;  // [all_ranges][tiles], if there are other tasks
  int* num_pending;   // and the number of these tasks that are not done
  int num_parts;      // number of tasks that share these columns

  int num_tiles() const { return (num_columns + kMaxColumns - 1) / kMaxColumns; }
  int cost() const { return num_ranges * num_tiles(); }
};

// Where a layer's keys and values begin, in elements after those of the jobs.
struct LayerOffset {
  long keys, values;
};

const AttentionKernels& attention_kernels(int level, int query_dim);

// Adds a job for each key-value head of a sequence. query and output: [num_tokens, num_heads, head_dim].
void add_jobs(const PagedHeads& heads, const PagedSequence& sequence, const bf16* query, bf16* output,
              std::vector<Job>& jobs);

// Returns the jobs' tasks for all threads, which several layers may run one after another. They are valid until this
// thread's next call, and as long as the jobs.
std::vector<Task> make_tasks(const std::vector<Job>& jobs);

// Runs tasks in this thread until none is left. `next` is the first one that no thread has begun.
void run_tasks(const AttentionKernels& kernels, const HeadShape& shape, int head_dim, const std::vector<Task>& tasks,
               std::atomic<int>& next, const LayerOffset& layer);

// Computes all jobs on all threads. A column's result depends on its own query, keys and values only.
void run_jobs(const AttentionKernels& kernels, const HeadShape& shape, int head_dim, const std::vector<Job>& jobs);

// Returns log2(e) / sqrt(head_dim): the factor of scores for powers of two.
float score_scale(int head_dim);

}  // namespace glimpse
