// Products with packed weights and the fused operations that Python calls.
#include "linear.h"

#include <omp.h>
#include <unistd.h>

#include "multiplication.h"

namespace glimpse {

namespace {

// Prefetch distances of products of 1 and 2 rows, which the memory bounds, of 3 to 5, and of more, which compute as
// long.
int64_t streamed_ahead[3] = {};
int64_t& streamed_ahead_of(int64_t rows) { return streamed_ahead[rows <= 2 ? 0 : rows <= 5 ? 1 : 2]; }

bool unpacks_integers = true;

// The size is 0 where it is not known.
Cached choose_cached(int64_t l2_bytes) {
  constexpr int64_t kLarge = 1 << 20;
  if (l2_bytes <= 0 || l2_bytes >= kLarge) return {kLarge, kMostCachedRows, 4};
  return {l2_bytes / 2, std::max<int64_t>(1, l2_bytes >> 16) * kTileRows, 8};
}

int64_t l2_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  return sysconf(_SC_LEVEL2_CACHE_SIZE);
#else
  return 0;
#endif
}

Cached cached_in_l2 = choose_cached(l2_bytes());

// Up to this number of rows, each thread lays out all of them for itself, which saves a barrier.
constexpr int64_t kReplicatedRows = 2;

// This thread's scratch.
thread_local Buffer own_buffers[3], sums_buffer, unpacked_buffer;

bool is_replicated(int64_t rows) { return rows <= kReplicatedRows; }

void multiply(const Kernels& kernels, const Activations& x, const Weight& weight, const Adaptation& adaptation,
              const Output& output, WorkQueue& queue) {
  if (adaptation) {
    adaptation.shrink(x, streamed_ahead_bytes(x.rows()));
#pragma omp barrier
  }
  Multiplication(kernels, x, weight, adaptation, output, queue, sums_buffer, unpacked_buffer).run();
}

Output to_rows(const Weight& weight, float* wide, bf16* narrow, const void* residual, int32_t activation) {
  Output output{nullptr, 0, wide, narrow, nullptr, nullptr, activation};
  if (weight.dtype == kFloat32) output.wide_residual = static_cast<const float*>(residual);
  else output.residual = static_cast<const bf16*>(residual);
  return output;
}

// This thread's rows of the input. Products of many rows come after a barrier, and take panels of full queues.
void lay_out(const Activations& x, const void* input, int64_t count, const Norm* norm, TeamBuffers& buffers,
             const int64_t* order = nullptr) {
  for (WorkQueue& queue : buffers.panels) queue.refill();
  Range rows = is_replicated(x.rows()) ? Range{0, x.rows()} : share(x.rows());
  for (int64_t row = rows.begin; row < rows.end; ++row) x.lay_out(row, order ? order[row] : row, input, count, norm);
}

Activations input_of(const Kernels& kernels, const Weight& weight, int64_t rows, TeamBuffers& buffers) {
  return {kernels, weight, rows, is_replicated(rows) ? own_buffers : buffers.input};
}

}  // namespace

const Cached& cached() { return cached_in_l2; }

bool unpacks_for_vectors() { return unpacks_integers; }

int64_t streamed_ahead_bytes(int64_t rows) { return streamed_ahead_of(rows); }

TeamBuffers& team_buffers() {
  thread_local TeamBuffers buffers;
  return buffers;
}

void reserve(const Kernels& kernels, const Linear& linear, TeamBuffers& buffers) {
  input_of(kernels, *linear.weight, linear.rows, buffers);
  Adaptation::reserve(linear.adapted, buffers.adapted);
}

void reserve(const Kernels& kernels, const Mlp& mlp, TeamBuffers& buffers) {
  input_of(kernels, *mlp.first, mlp.rows, buffers);
  Activations(kernels, *mlp.second, mlp.rows, buffers.inner);
  Adaptation::reserve(mlp.adapted, buffers.adapted);
}

void run_in_team(const Kernels& kernels, const Linear& linear, TeamBuffers& buffers) {
  const Activations input = input_of(kernels, *linear.weight, linear.rows, buffers);
  lay_out(input, linear.x, linear.weight->in_features, linear.norm, buffers);
  if (!is_replicated(linear.rows)) {
#pragma omp barrier
  }
  const Adaptation adaptation(kernels, *linear.weight, linear.added, linear.adapted, buffers.adapted);
  multiply(kernels, input, *linear.weight, adaptation,
           to_rows(*linear.weight, linear.wide, linear.narrow, linear.residual, linear.activation), buffers.panels[0]);
}

void run_in_team(const Kernels& kernels, const Mlp& mlp, TeamBuffers& buffers) {
  const Activations input = input_of(kernels, *mlp.first, mlp.rows, buffers);
  const Activations inner(kernels, *mlp.second, mlp.rows, buffers.inner);
  const Range own = share(mlp.rows);
  lay_out(input, mlp.x, mlp.first->in_features, mlp.norm, buffers, mlp.order);
  for (int64_t row = own.begin; row < own.end; ++row) inner.clear_padding(row, mlp.second->in_features);
  // The first product writes to the tile where the padding begins.
  if (!is_replicated(mlp.rows) || mlp.second->in_features % kTileInputs != 0) {
#pragma omp barrier
  }
  const Adaptation first(kernels, *mlp.first, mlp.first_added, mlp.adapted, buffers.adapted);
  const Adaptation second(kernels, *mlp.second, mlp.second_added, mlp.adapted, buffers.adapted);
  multiply(kernels, input, *mlp.first, first,
           {inner.tiles(), inner.num_tiles(), nullptr, nullptr, nullptr, nullptr, mlp.activation}, buffers.panels[0]);
#pragma omp barrier
  if (inner.has_integers()) {
    inner.make_integers(own);
#pragma omp barrier
  }
  const bool is_wide = mlp.second->dtype == kFloat32;
  float* wide = is_wide && !mlp.wide ? static_cast<float*>(mlp.y) : mlp.wide;
  bf16* narrow = wide ? nullptr : static_cast<bf16*>(mlp.y);
  multiply(kernels, inner, *mlp.second, second, to_rows(*mlp.second, wide, narrow, mlp.residual, kIdentity),
           buffers.panels[1]);
}

}  // namespace glimpse

using namespace glimpse;

// Returns up to which number of rows a product reads weights of a type of activations in order, from memory.
extern "C" int64_t glimpse_streamed_rows(int level, int32_t dtype) {
  return kernels_of(level, static_cast<DType>(dtype)).streamed_rows;
}

// Returns whether many rows are multiplied by the integers of a weight once these are widened.
extern "C" int glimpse_widens_integers(int level, const Weight* weight) {
  const bool is_quantized = is_int8(*weight) || has_groups(*weight);
  return is_quantized && kernels_of(level, weight->dtype).unpacker(*weight);
}

// Sets the size of the L2 cache.
extern "C" void glimpse_set_l2_cache(int64_t bytes) { cached_in_l2 = choose_cached(bytes); }

// Sets whether many rows are multiplied by integers that were widened in the cache, or in registers for each few rows.
extern "C" void glimpse_set_unpacking(int enabled) { unpacks_integers = enabled; }

// Sets how far ahead products of as many rows, and of others that are bound by the same, prefetch such weights.
extern "C" void glimpse_set_prefetch(int64_t rows, int64_t ahead_bytes) { streamed_ahead_of(rows) = ahead_bytes; }

// y = activation(norm(x) Wᵀ + b) + residual for x [rows, in_features]; y is float32 in `wide` or bfloat16 in `narrow`.
// x and the residual have the weight's type of activations. A gated weight's y has all gates of a row first.
// What is added, here and below: see `Linear`.
extern "C" void glimpse_linear(int level, const Weight* weight, const Norm* norm, const void* x, int64_t rows,
                               int32_t activation, const void* residual, float* wide, bf16* narrow,
                               const LowRanks* added, const RowAdapters* adapted) {
  if (rows == 0) return;
  const Kernels& kernels = kernels_of(level, weight->dtype);
  const Linear linear{weight, norm, x, rows, activation, residual, wide, narrow, added, adapted};
  TeamBuffers& buffers = team_buffers();
  reserve(kernels, linear, buffers);
#pragma omp parallel
  run_in_team(kernels, linear, buffers);
}

// y = second(activation(first(norm(x)))) + residual for x [rows, in_features of `first`]. x, the residual and y have
// the weights' type of activations.
extern "C" void glimpse_mlp(int level, const Weight* first, const Weight* second, const Norm* norm, const void* x,
                            int64_t rows, int32_t activation, const void* residual, void* y,
                            const LowRanks* first_added, const LowRanks* second_added, const RowAdapters* adapted) {
  if (rows == 0) return;
  const Kernels& kernels = kernels_of(level, first->dtype);
  const Mlp mlp{first, second, norm, x, rows, activation, residual, y, first_added, second_added, adapted};
  TeamBuffers& buffers = team_buffers();
  reserve(kernels, mlp, buffers);
#pragma omp parallel
  run_in_team(kernels, mlp, buffers);
}
