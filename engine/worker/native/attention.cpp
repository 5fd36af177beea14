// Divides attention into tasks of similar cost and runs them.
//
// Keys are always computed in ranges of 256 that begin at a multiple of 256. Each range has its own maximum, and ranges
// are merged in order by any thread. So a column's result is bit-identical for any neighbouring columns, number of
// threads and prompt chunks.
#include "attention.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "int8.h"

namespace glimpse {
namespace {

constexpr int kTaskTiles = 4;       // tiles that use a range while it is in the cache
constexpr int kTasksPerThread = 4;  // minimum if there is enough work, so that threads finish together

template <class T>
struct alignas(64) ThreadSpace {
  Workspace workspace;
  QueryTile tiles[kTaskTiles];
  Partial totals[kTaskTiles];
  Partial partial;
  T last_values[kMaxHeadDim * kMaxBlockSize];
  // A range of keys and values of 8 bits: their integers, widened, and their scales.
  T keys[kRangeKeys * kMaxHeadDim];
  T values[kMaxHeadDim * kRangeKeys];
  float key_scales[kRangeKeys], value_scales[kRangeKeys];
};

int range_count(int num_keys) { return (num_keys + kRangeKeys - 1) / kRangeKeys; }

// Returns the keys up to a column's own.
template <class T>
int own_keys(const Job<T>& job, int column) {
  return job.source.num_keys - job.num_tokens + column / job.num_heads + 1;
}

// Returns the end of the keys that a column attends to.
template <class T>
int visible_to(const Job<T>& job, int column) {
  if (job.limits) return job.limits[column / job.num_heads];
  return job.causal ? own_keys(job, column) : job.source.num_keys;
}

// Returns the first key that a column attends to.
template <class T>
int visible_from(const Job<T>& job, int column) {
  return job.window ? std::max(own_keys(job, column) - job.window, 0) : 0;
}

int first_range(const QueryTile& tile) { return tile.starts[0] / kRangeKeys; }

int last_limit(const QueryTile& tile) { return tile.limits[tile.columns - 1]; }

// Slots after the last key are uninitialized, and 0 · NaN is NaN: copies the last block's values with zeros there.
template <class T>
void zero_missing_values(const HeadShape& shape, KeyRange<T>& range, T* copy) {
  const int num_valid = range.num_keys % kBlockKeys;
  if (num_valid == 0) return;
  const T*& values = range.values[range.num_keys / kBlockKeys];
  for (int i = 0; i < shape.value_dim; ++i) {
    T* row = copy + i * range.value_stride;
    std::memcpy(row, values + i * range.value_stride, sizeof(T) * num_valid);
    std::memset(row + num_valid, 0, sizeof(T) * (kBlockKeys - num_valid));
  }
  values = copy;
}

template <class T>
KeyRange<T> find_range(const HeadShape& shape, const KeySource& source, const LayerOffset& layer, int index,
                       ThreadSpace<T>& space) {
  KeyRange<T> range = {};
  range.first = index * kRangeKeys;
  range.num_keys = std::min(kRangeKeys, source.num_keys - range.first);
  range.value_stride = source.is_int8 ? kBlockKeys : source.block_size;
  if (source.is_int8) {
    range.key_scales = space.key_scales;
    range.value_scales = space.value_scales;
    std::fill_n(space.value_scales + range.num_keys, kRangeKeys - range.num_keys, 0.0f);  // weights are finite
  }
  for (int i = 0; i * kBlockKeys < range.num_keys; ++i) {
    const int key = range.first + i * kBlockKeys;
    const long block = source.blocks ? source.blocks[key / source.block_size] : key / source.block_size;
    const int place = key % source.block_size;
    const char* keys = source.keys + layer.keys + block * source.key_stride;
    const char* values = source.values + layer.values + block * source.value_stride;
    if (source.is_int8) {
      const int count = std::min(kBlockKeys, range.num_keys - i * kBlockKeys);
      T* wide_keys = space.keys + i * kBlockKeys * shape.query_dim;
      T* wide_values = space.values + i * kBlockKeys * shape.value_dim;
      widen_keys(reinterpret_cast<const std::int8_t*>(keys), place, count, shape.query_dim, wide_keys,
                 space.key_scales + i * kBlockKeys);
      widen_values(reinterpret_cast<const std::int8_t*>(values), place, count, shape.value_dim, source.block_size,
                   wide_values, space.value_scales + i * kBlockKeys);
      range.keys[i] = wide_keys;
      range.values[i] = wide_values;
    } else {
      range.keys[i] = reinterpret_cast<const T*>(keys) + place * shape.query_dim;
      range.values[i] = reinterpret_cast<const T*>(values) + place;
    }
  }
  if (!source.is_int8) zero_missing_values(shape, range, space.last_values);
  return range;
}

template <class T>
class TaskRunner {
 public:
  TaskRunner(const AttentionKernels<T>& kernels, const HeadShape& shape, int head_dim, const LayerOffset& layer)
      : kernels_(kernels), shape_(shape), head_dim_(head_dim), layer_(layer), space_(thread_space()) {}

  void run(const Task<T>& task) {
    for (int i = 0; i < task.num_tiles(); ++i) pack_tile(task, i);
    for (int index = task.first_range; index < task.first_range + task.num_ranges; ++index) attend_range(task, index);
    if (task.num_ranges < task.all_ranges) {
      if (__atomic_sub_fetch(task.num_pending, 1, __ATOMIC_ACQ_REL) > 0) return;
      *task.num_pending = task.num_parts;  // for the next layer
      for (int i = 0; i < task.num_tiles(); ++i) merge_tile(task, i);
    }
    for (int i = 0; i < task.num_tiles(); ++i) finish_tile(task, i);
  }

 private:
  static ThreadSpace<T>& thread_space() {
    thread_local const std::unique_ptr<ThreadSpace<T>> space(new ThreadSpace<T>);
    return *space;
  }

  // Finds the rows of a tile's columns in queries or output; null after the last column.
  template <typename Number>
  void find_rows(const Task<T>& task, int tile, Number* base, long stride, Number** rows) const {
    const int num_heads = task.job->num_heads;
    for (int i = 0; i < kMaxColumns; ++i) {
      const int place = tile * kMaxColumns + i, column = task.first_column + place;
      const long offset = column / num_heads * stride + column % num_heads * head_dim_;
      rows[i] = place < task.num_columns ? base + offset : nullptr;
    }
  }

  void pack_tile(const Task<T>& task, int index) {
    QueryTile& tile = space_.tiles[index];
    const int num_columns = task.num_columns - index * kMaxColumns;
    const int step = kernels_.column_step;
    tile.num_queries = std::min(num_columns, kMaxColumns);
    tile.columns = (tile.num_queries + step - 1) / step * step;
    const int first = task.first_column + index * kMaxColumns;
    const int last = task.first_column + task.num_columns - 1;
    for (int i = 0; i < tile.columns; ++i) {
      tile.limits[i] = visible_to(*task.job, std::min(first + i, last));
      tile.starts[i] = visible_from(*task.job, std::min(first + i, last));
    }
    const T* rows[kMaxColumns];
    find_rows(task, index, task.job->query, task.job->query_stride, rows);
    kernels_.pack_queries(rows, head_dim_, shape_.query_dim, tile);
  }

  void attend_range(const Task<T>& task, int index) {
    const KeyRange<T> range = find_range(shape_, task.job->source, layer_, index, space_);
    for (int i = 0; i < task.num_tiles(); ++i) {
      const QueryTile& tile = space_.tiles[i];
      if (index < first_range(tile) || range.first >= last_limit(tile)) continue;
      if (task.num_ranges < task.all_ranges) {
        kernels_.attend(shape_, tile, range, space_.workspace, partial_of(task, index, i));
      } else if (index == first_range(tile)) {
        kernels_.attend(shape_, tile, range, space_.workspace, space_.totals[i]);
      } else {
        kernels_.attend(shape_, tile, range, space_.workspace, space_.partial);
        kernels_.merge(shape_.value_dim, tile.columns, space_.partial, space_.totals[i]);
      }
    }
  }

  static Partial& partial_of(const Task<T>& task, int range, int tile) {
    return task.partials[(range - task.begin_range) * task.num_tiles() + tile];
  }

  void merge_tile(const Task<T>& task, int index) {
    const QueryTile& tile = space_.tiles[index];
    Partial& total = partial_of(task, first_range(tile), index);
    for (int range = first_range(tile) + 1; range * kRangeKeys < last_limit(tile); ++range) {
      kernels_.merge(shape_.value_dim, tile.columns, partial_of(task, range, index), total);
    }
  }

  void finish_tile(const Task<T>& task, int index) {
    const bool whole = task.num_ranges == task.all_ranges;
    const Partial& total = whole ? space_.totals[index] : partial_of(task, first_range(space_.tiles[index]), index);
    T* rows[kMaxColumns];
    find_rows(task, index, task.job->output, task.job->output_stride, rows);
    kernels_.finish(shape_.value_dim, space_.tiles[index].columns, total, rows);
  }

  const AttentionKernels<T>& kernels_;
  const HeadShape& shape_;
  const int head_dim_;
  const LayerOffset layer_;
  ThreadSpace<T>& space_;
};

// Divides each job's columns into groups of tiles, each with all its ranges.
template <class T>
std::vector<Task<T>> group_columns(const std::vector<Job<T>>& jobs) {
  std::vector<Task<T>> tasks;
  for (const Job<T>& job : jobs) {
    const int num_columns = job.num_tokens * job.num_heads;
    for (int first = 0; first < num_columns; first += kTaskTiles * kMaxColumns) {
      const int count = std::min(kTaskTiles * kMaxColumns, num_columns - first);
      const int begin = visible_from(job, first) / kRangeKeys;
      const int num_ranges = range_count(visible_to(job, first + count - 1)) - begin;
      tasks.push_back({&job, first, count, begin, num_ranges, begin, num_ranges, nullptr, nullptr, 1});
    }
  }
  return tasks;
}

// Returns memory that is reused in the next call.
template <typename Item>
Item* reuse(std::unique_ptr<Item[]>& items, std::size_t& capacity, std::size_t count) {
  if (count > capacity) {
    items.reset(new Item[count]);
    capacity = count;
  }
  return items.get();
}

// Divides tasks that cost more than a thread's share by ranges. Partials are valid until this thread's next call.
template <class T>
std::vector<Task<T>> split_ranges(const std::vector<Task<T>>& groups) {
  thread_local std::unique_ptr<Partial[]> partials;
  thread_local std::unique_ptr<int[]> pending;
  thread_local std::size_t partial_capacity = 0, pending_capacity = 0;
  long total = 0;
  for (const Task<T>& group : groups) total += group.cost();
  const int share = std::max(1L, total / (omp_get_max_threads() * kTasksPerThread));
  const auto ranges_per_task = [&](const Task<T>& group) { return std::max(1, share / group.num_tiles()); };

  std::size_t num_partials = 0;
  for (const Task<T>& group : groups) num_partials += group.num_ranges > ranges_per_task(group) ? group.cost() : 0;
  Partial* partial = reuse(partials, partial_capacity, num_partials);
  int* num_pending = reuse(pending, pending_capacity, groups.size());

  std::vector<Task<T>> tasks;
  for (const Task<T>& group : groups) {
    const int step = ranges_per_task(group);
    const int num_parts = *num_pending = (group.num_ranges + step - 1) / step;
    for (int first = 0; first < group.num_ranges; first += step) {
      Task<T> task = group;
      task.first_range = group.first_range + first;
      task.num_ranges = std::min(step, group.num_ranges - first);
      task.partials = partial;
      task.num_pending = num_pending;
      task.num_parts = num_parts;
      tasks.push_back(task);
    }
    if (num_parts > 1) partial += group.cost();
    ++num_pending;
  }
  return tasks;
}

}  // namespace

float score_scale(int head_dim) { return static_cast<float>(M_LOG2E / std::sqrt(static_cast<double>(head_dim))); }

template <class T>
void add_jobs(const PagedHeads& heads, const PagedSequence& sequence, const T* query, T* output,
              std::vector<Job<T>>& jobs) {
  const int num_queries_per_kv = heads.num_heads / heads.num_kv_heads;
  const char *keys = static_cast<const char*>(heads.keys), *values = static_cast<const char*>(heads.values);
  const long row = heads.is_int8 ? heads.head_dim + kScaleBytes : heads.head_dim * sizeof(T);
  const long head_stride = heads.block_size * row;
  const long block_stride = heads.num_kv_heads * head_stride;
  const long token_stride = static_cast<long>(heads.num_heads) * heads.head_dim;
  for (int head = 0; head < heads.num_kv_heads; ++head) {
    const long offset = static_cast<long>(head) * num_queries_per_kv * heads.head_dim;
    jobs.push_back({{keys + head * head_stride, values + head * head_stride, block_stride, block_stride,
                     sequence.blocks, heads.block_size, sequence.num_keys, heads.is_int8},
                    query + offset,
                    output + offset,
                    token_stride,
                    token_stride,
                    sequence.num_tokens,
                    num_queries_per_kv,
                    true,
                    sequence.window,
                    sequence.limits});
  }
}

template <class T>
std::vector<Task<T>> make_tasks(const std::vector<Job<T>>& jobs) {
  std::vector<Task<T>> tasks = omp_get_max_threads() > 1 ? split_ranges(group_columns(jobs)) : group_columns(jobs);
  const auto costs_more = [](const Task<T>& a, const Task<T>& b) { return a.cost() > b.cost(); };
  std::stable_sort(tasks.begin(), tasks.end(), costs_more);
  return tasks;
}

template <class T>
void run_tasks(const AttentionKernels<T>& kernels, const HeadShape& shape, int head_dim,
               const std::vector<Task<T>>& tasks, WorkQueue& queue, const LayerOffset& layer) {
  const int64_t num_tasks = tasks.size();
  kernels.enter();
  TaskRunner<T> runner(kernels, shape, head_dim, layer);
  for (int64_t i; (i = queue.take_one()) < num_tasks;) runner.run(tasks[i]);
  kernels.leave();
}

template <class T>
void run_jobs(const AttentionKernels<T>& kernels, const HeadShape& shape, int head_dim,
              const std::vector<Job<T>>& jobs) {
  const std::vector<Task<T>> tasks = make_tasks(jobs);
  WorkQueue queue;
#pragma omp parallel if (tasks.size() > 1)
  run_tasks(kernels, shape, head_dim, tasks, queue, {0, 0});
}

#define INSTANTIATE(T)                                                                                                \
  template void add_jobs(const PagedHeads&, const PagedSequence&, const T*, T*, std::vector<Job<T>>&);                \
  template std::vector<Task<T>> make_tasks(const std::vector<Job<T>>&);                                               \
  template void run_tasks(const AttentionKernels<T>&, const HeadShape&, int, const std::vector<Task<T>>&, WorkQueue&, \
                          const LayerOffset&);                                                                        \
  template void run_jobs(const AttentionKernels<T>&, const HeadShape&, int, const std::vector<Job<T>>&);

INSTANTIATE(bf16)
INSTANTIATE(float)

}  // namespace glimpse
