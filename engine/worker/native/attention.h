// Attention as jobs for several threads, independent of instruction sets and of the caller's layout.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_kernels.h"
#include "cpu.h"
#include "team.h"

namespace glimpse {

constexpr int kMaxBlockSize = 128;

// Keys, values, queries and outputs are bf16 or float.

// The keys and values of one head of one sequence, in blocks. Numbers of 8 bits are followed by the scales of int8.h.
struct KeySource {
  const char* keys;    // [blocks, block_size, query_dim] with a block stride of `key_stride` bytes
  const char* values;  // [blocks, value_dim, block_size] with a block stride of `value_stride` bytes
  long key_stride, value_stride;
  const std::int32_t* blocks;  // block table of the sequence; null: consecutive blocks
  int block_size;              // 32, 64, 96 or 128
  int num_keys;
  bool is_int8 = false;
};

// Query heads of one sequence that share its keys. Column c is head c % num_heads of token c / num_heads.
template <class T>
struct Job {
  KeySource source;
  const T* query;  // [tokens, num_heads, head_dim] with a token stride of `query_stride` elements
  T* output;       // like `query`, with stride `output_stride`
  long query_stride, output_stride;
  int num_tokens, num_heads;
  bool causal;     // whether a token attends to keys up to its own only; the last token attends to all
  int window = 0;  // keys up to its own that a token attends to at most; 0: all
  const std::int32_t* limits = nullptr;  // of each token, the keys it attends to, those before its window included;
                                         // they do not decrease; null: as `causal` says
};

// The heads of one layer's paged KV cache.
struct PagedHeads {
  const void* keys;    // [blocks, num_kv_heads, block_size, head_dim]
  const void* values;  // [blocks, num_kv_heads, head_dim, block_size]
  int num_heads, num_kv_heads, head_dim, block_size;
  bool is_int8;  // with a head_dim that scales add to; otherwise numbers are those of queries
};

// A sequence whose last tokens are computed.
struct PagedSequence {
  const std::int32_t* blocks;            // its block table
  int num_keys;                          // its tokens so far, those that are computed included
  int num_tokens;                        // of which are computed
  int window = 0;                        // as in `Job`
  const std::int32_t* limits = nullptr;  // as in `Job`, of the tokens that are computed
};

// Some columns of a job against some ranges of its keys.
template <class T>
struct Task {
  const Job<T>* job;
  int first_column, num_columns;
  int first_range, num_ranges;
  int begin_range, all_ranges;  // of these columns; other tasks compute those that this one does not
  Partial* partials;            // [all_ranges][tiles], if there are other tasks
  int* num_pending;             // and the number of these tasks that are not done
  int num_parts;                // number of tasks that share these columns

  int num_tiles() const { return (num_columns + kMaxColumns - 1) / kMaxColumns; }
  int cost() const { return num_ranges * num_tiles(); }
};

// Where a layer's keys and values begin, in bytes after those of the jobs.
struct LayerOffset {
  long keys, values;
};

template <class T>
const AttentionKernels<T>& attention_kernels(int level, int query_dim);

// Adds a job for each key-value head of a sequence. query and output: [num_tokens, num_heads, head_dim].
template <class T>
void add_jobs(const PagedHeads& heads, const PagedSequence& sequence, const T* query, T* output,
              std::vector<Job<T>>& jobs);

// Returns the jobs' tasks for all threads, which several layers may run one after another. They are valid until this
// thread's next call, and as long as the jobs.
template <class T>
std::vector<Task<T>> make_tasks(const std::vector<Job<T>>& jobs);

// Runs tasks in this thread until none is left. Each run has a queue.
template <class T>
void run_tasks(const AttentionKernels<T>& kernels, const HeadShape& shape, int head_dim,
               const std::vector<Task<T>>& tasks, WorkQueue& queue, const LayerOffset& layer);

// Computes all jobs on all threads. A column's result depends on its own query, keys and values only.
template <class T>
void run_jobs(const AttentionKernels<T>& kernels, const HeadShape& shape, int head_dim,
              const std::vector<Job<T>>& jobs);

// Returns log2(e) / sqrt(head_dim): the factor of scores for powers of two.
float score_scale(int head_dim);

}  // namespace glimpse
