// Entry points for Python: attention over the paged KV cache, and over packed patches.
#include <algorithm>
#include <memory>
#include <vector>

#include "attention.h"

namespace {

using glimpse::DType;
using glimpse::HeadShape;
using glimpse::Job;
using glimpse::kBlockKeys;

// Returns cache-line aligned memory for `count` elements, which is reused in this thread's next call.
template <class T>
T* packing_space(std::size_t count) {
  constexpr std::size_t kLineNumbers = 64 / sizeof(T);
  struct alignas(64) Line {
    T numbers[kLineNumbers];
  };
  thread_local std::unique_ptr<Line[]> lines;
  thread_local std::size_t capacity = 0;
  const std::size_t num_lines = (count + kLineNumbers - 1) / kLineNumbers;
  if (num_lines > capacity) {
    lines.reset(new Line[num_lines]);
    capacity = num_lines;
  }
  return lines[0].numbers;
}

long block_count(int num_keys) { return (num_keys + kBlockKeys - 1) / kBlockKeys; }

// Packed patches of several segments: queries, keys and values, [patches, num_heads, head_dim] each.
template <class T>
struct Patches {
  const T *query, *keys, *values;
  long query_stride, key_stride, value_stride;  // in elements
  const std::int32_t* starts;                   // first patch of each segment, and the number of patches
  int num_segments, num_heads, head_dim, query_dim;

  int count(int segment) const { return starts[segment + 1] - starts[segment]; }
  long key_block() const { return static_cast<long>(kBlockKeys) * query_dim; }
  long value_block() const { return static_cast<long>(kBlockKeys) * head_dim; }
};

// Returns a job for each head of each segment. Their keys and values are consecutive in `space`, to be packed later.
template <class T>
std::vector<Job<T>> segment_jobs(const Patches<T>& patches, long num_blocks, T* space, T* output) {
  const long output_stride = static_cast<long>(patches.num_heads) * patches.head_dim;
  T* keys = space;
  T* values = space + num_blocks * patches.num_heads * patches.key_block();
  std::vector<Job<T>> jobs;
  for (int s = 0; s < patches.num_segments; ++s) {
    const long first = patches.starts[s];
    for (long column = 0; column < output_stride; column += patches.head_dim) {
      jobs.push_back({{reinterpret_cast<const char*>(keys), reinterpret_cast<const char*>(values),
                       static_cast<long>(patches.key_block() * sizeof(T)),
                       static_cast<long>(patches.value_block() * sizeof(T)), nullptr, kBlockKeys, patches.count(s)},
                      patches.query + first * patches.query_stride + column,
                      output + first * output_stride + column,
                      patches.query_stride,
                      output_stride,
                      patches.count(s),
                      1,
                      false});
      keys += block_count(patches.count(s)) * patches.key_block();
      values += block_count(patches.count(s)) * patches.value_block();
    }
  }
  return jobs;
}

// Packs the keys and values of a job of `segment_jobs`.
template <class T>
void pack_segment(const glimpse::AttentionKernels<T>& kernels, const Patches<T>& patches, const Job<T>& job) {
  T* to_keys = reinterpret_cast<T*>(const_cast<char*>(job.source.keys));
  T* to_values = reinterpret_cast<T*>(const_cast<char*>(job.source.values));
  const long place = job.query - patches.query;
  const long patch = place / patches.query_stride, column = place % patches.query_stride;
  for (int first = 0; first < job.num_tokens; first += kBlockKeys) {
    const int count = std::min(kBlockKeys, job.num_tokens - first);
    const T* keys = patches.keys + (patch + first) * patches.key_stride + column;
    const T* values = patches.values + (patch + first) * patches.value_stride + column;
    kernels.pack_keys(keys, patches.key_stride, count, patches.head_dim, patches.query_dim, to_keys);
    kernels.pack_values(values, patches.value_stride, count, patches.head_dim, to_values);
    to_keys += patches.key_block();
    to_values += patches.value_block();
  }
}

template <class T>
void attend_packed(int level, const Patches<T>& patches, float scale, T* output) {
  const HeadShape shape = {patches.query_dim, patches.head_dim, scale};
  const glimpse::AttentionKernels<T>& kernels = glimpse::attention_kernels<T>(level, patches.query_dim);
  long num_blocks = 0;
  for (int s = 0; s < patches.num_segments; ++s) num_blocks += block_count(patches.count(s));
  T* space = packing_space<T>(num_blocks * patches.num_heads * (patches.key_block() + patches.value_block()));
  const std::vector<Job<T>> jobs = segment_jobs(patches, num_blocks, space, output);
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < jobs.size(); ++i) pack_segment(kernels, patches, jobs[i]);
  glimpse::run_jobs(kernels, shape, patches.head_dim, jobs);
}

}  // namespace

// query and output: [tokens, num_heads, head_dim]. keys: [blocks, num_kv_heads, block_size, head_dim].
// values: [blocks, num_kv_heads, head_dim, block_size]. Sequence s has the tokens query_starts[s] to query_starts[s +
// 1] and key_lengths[s] keys, the tokens' own last, in the blocks block_tables[s][...]. All numbers are of `dtype`, or
// those of keys and values of 8 bits, with the scales of int8.h if is_int8.
// window and limits (of all tokens): as in `Job`.
extern "C" void glimpse_paged_attention(int level, DType dtype, const void* query, const void* keys, const void* values,
                                        const std::int32_t* block_tables, const std::int32_t* query_starts,
                                        const std::int32_t* key_lengths, const std::int32_t* limits, int num_sequences,
                                        int table_width, int num_heads, int num_kv_heads, int head_dim, int block_size,
                                        int window, int is_int8, void* output) {
  const HeadShape shape = {head_dim, head_dim, glimpse::score_scale(head_dim)};
  glimpse::with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    const glimpse::PagedHeads heads = {keys, values, num_heads, num_kv_heads, head_dim, block_size, is_int8 != 0};
    std::vector<Job<T>> jobs;
    for (int sequence = 0; sequence < num_sequences; ++sequence) {
      const long first = query_starts[sequence];
      const long offset = first * num_heads * head_dim;
      const glimpse::PagedSequence paged = {block_tables + static_cast<long>(sequence) * table_width,
                                            key_lengths[sequence], query_starts[sequence + 1] - query_starts[sequence],
                                            window, limits ? limits + first : nullptr};
      glimpse::add_jobs(heads, paged, static_cast<const T*>(query) + offset, static_cast<T*>(output) + offset, jobs);
    }
    glimpse::run_jobs(glimpse::attention_kernels<T>(level, head_dim), shape, head_dim, jobs);
  });
}

// query, keys, values: [patches, num_heads, head_dim], a patch of each every so many numbers. output: likewise, without
// gaps. All numbers are of `dtype`. Each patch attends to all patches of its segment s, which are starts[s] to
// starts[s + 1]. Heads may end with padding: scores are scaled as for heads of `scaled_dim`.
extern "C" void glimpse_packed_attention(int level, DType dtype, const void* query, const void* keys,
                                         const void* values, long query_stride, long key_stride, long value_stride,
                                         const std::int32_t* starts, int num_segments, int num_heads, int head_dim,
                                         int scaled_dim, void* output) {
  const bool pads = dtype == glimpse::kBfloat16 && level == glimpse::kAmx;
  const int query_dim = pads ? (head_dim + 31) / 32 * 32 : head_dim;
  glimpse::with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    const Patches<T> patches = {static_cast<const T*>(query),
                                static_cast<const T*>(keys),
                                static_cast<const T*>(values),
                                query_stride,
                                key_stride,
                                value_stride,
                                starts,
                                num_segments,
                                num_heads,
                                head_dim,
                                query_dim};
    attend_packed(level, patches, glimpse::score_scale(scaled_dim), static_cast<T*>(output));
  });
}
