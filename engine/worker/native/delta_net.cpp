// Gated delta nets: the kernels of a level, and what Python calls.
#include "delta_net.h"

#include <omp.h>

#include <algorithm>

#include "activations.h"

namespace glimpse {

namespace {

thread_local Buffer scratch_buffer;

// Tasks of a part and a head of keys: one for each head of values if threads had nothing to do otherwise.
int64_t num_divisions(int64_t num_heads, int group) { return num_heads < 2 * omp_get_max_threads() ? group : 1; }

// Computes a task: a division of the heads of values that a head of keys serves.
template <class T>
void run_task(const DeltaNetKernels<T>& kernels, const StateStep<T>& step, const StatePart& part, int64_t task,
              int64_t divisions) {
  const int key_head = static_cast<int>(task / divisions), division = static_cast<int>(task % divisions);
  if (part.num_rows == 1) {
    if (division == 0) kernels.update(step, part, key_head);
    return;
  }
  const int size = step.group() / static_cast<int>(divisions), first = key_head * step.group() + division * size;
  char* scratch = scratch_buffer.reserve(kernels.scratch_floats(step.net) * static_cast<int64_t>(sizeof(float)));
  kernels.update_many(step, part, {key_head, first, first + size}, reinterpret_cast<float*>(scratch));
}

template <class T>
void update_states(const DeltaNetKernels<T>& kernels, const StateStep<T>& step, const StatePart* parts,
                   int64_t num_parts) {
  const int64_t num_heads = step.net.num_key_heads;
  const int64_t divisions = num_divisions(num_parts * num_heads, step.group()), tasks = num_heads * divisions;
#pragma omp parallel
  {
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < num_parts * tasks; ++task)
      run_task(kernels, step, parts[task / tasks], task % tasks, divisions);
    // All tasks of a part have read what these overwrite.
#pragma omp for
    for (int64_t i = 0; i < num_parts; ++i)
      if (parts[i].num_rows > 1) kernels.keep_inputs(step, parts[i]);
  }
}

}  // namespace
}  // namespace glimpse

using glimpse::DeltaNetLayer;
using glimpse::DType;
using glimpse::StatePart;

// Updates states with a step's tokens, in parts that do not read what others write; see `StateStep`.
extern "C" void glimpse_delta_net(int level, DType dtype, const DeltaNetLayer* net, const StatePart* parts,
                                  int64_t num_parts, const void* projected, const void* rates, void* conv_states,
                                  float* recurrent, void* output) {
  glimpse::with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    const glimpse::StateStep<T> step = {
        *net,      static_cast<const T*>(projected), static_cast<const T*>(rates), static_cast<T*>(conv_states),
        recurrent, static_cast<T*>(output)};
    glimpse::update_states(glimpse::delta_net_kernels<T>(level), step, parts, num_parts);
  });
}

// See `DeltaNetKernels::multiply_gates`.
extern "C" void glimpse_multiply_gates(int level, DType dtype, const void* x, const void* gates, int64_t count,
                                       void* output) {
  constexpr int64_t kNumbersPerThread = 1 << 14;  // fewer do not repay waking a thread
  glimpse::with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto& kernels = glimpse::delta_net_kernels<T>(level);
#pragma omp parallel for schedule(static) if (count > kNumbersPerThread)
    for (int64_t first = 0; first < count; first += kNumbersPerThread) {
      kernels.multiply_gates(static_cast<const T*>(x) + first, static_cast<const T*>(gates) + first,
                             std::min(kNumbersPerThread, count - first), static_cast<T*>(output) + first);
    }
  });
}
