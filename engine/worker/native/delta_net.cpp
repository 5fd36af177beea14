// Gated delta nets: the kernels of a level, and what Python calls.
#include "delta_net.h"

#include <algorithm>

#include "cpu.h"

namespace glimpse {

extern const DeltaNetKernels<bf16> kDeltaNetAvx2, kDeltaNetAvx512;
extern const DeltaNetKernels<float> kDeltaNetAvx2Float, kDeltaNetAvx512Float;

template <>
const DeltaNetKernels<bf16>& delta_net_kernels(int level) {
  return level >= kAvx512 ? kDeltaNetAvx512 : kDeltaNetAvx2;
}

template <>
const DeltaNetKernels<float>& delta_net_kernels(int level) {
  return level >= kAvx512 ? kDeltaNetAvx512Float : kDeltaNetAvx2Float;
}

}  // namespace glimpse

using glimpse::DeltaNetLayer;
using glimpse::DType;
using glimpse::StateStep;

// Updates states with a step's tokens; see `DeltaNetKernels::run_task`.
extern "C" void glimpse_delta_net(int level, DType dtype, const DeltaNetLayer* net, const void* projected,
                                  const void* rates, const int64_t* reads, const int64_t* writes, int64_t num_tokens,
                                  void* conv_states, float* recurrent, void* output) {
  glimpse::with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto& kernels = glimpse::delta_net_kernels<T>(level);
    const StateStep step = {reads, writes, num_tokens};
    const int64_t num_tasks = glimpse::delta_net_tasks(*net, step);
#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < num_tasks; ++task) {
      kernels.run_task(*net, step, static_cast<const T*>(projected), static_cast<const T*>(rates),
                       static_cast<T*>(conv_states), recurrent, static_cast<T*>(output), task);
    }
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
