// The recurrent step of gated delta nets, for callers that run several operations in one parallel region. The reference
// implementation is engine/worker/layers/delta_net.py.
#pragma once

#include "types.h"

namespace glimpse {

// The weights of a layer; declarations.py reads the fields here.
struct DeltaNetLayer {
  const float* conv;        // [conv_size, conv_width]
  const float* decay;       // [value_heads]: logarithms of rates
  const float* decay_bias;  // [value_heads]
  const float* norm;        // [value_head_dim]
  float eps;
  int32_t num_key_heads, num_value_heads, key_head_dim, value_head_dim, conv_size;
};

// Tokens of different sequences, one of each.
struct StateStep {
  const int64_t* reads;   // [tokens]: states before the tokens; negative: zeros
  const int64_t* writes;  // [tokens]
  int64_t num_tokens;
};

// What a processor level gives gated delta nets. T is bf16 or float.
template <class T>
struct DeltaNetKernels {
  // Updates the states of one head of keys of one token, and those of the heads of values that it serves. Tasks are
  // numbered from 0 to `delta_net_tasks`, and independent.
  // projected: [tokens, conv_width + value_width]. rates: [tokens, 2 · value_heads]. output: [tokens, value_width].
  // conv_states: [states, conv_size - 1, conv_width]. recurrent: [states, value_heads, key_head_dim, value_head_dim].
  void (*run_task)(const DeltaNetLayer& net, const StateStep& step, const T* projected, const T* rates, T* conv_states,
                   float* recurrent, T* output, int64_t task);
  // output = x · sigmoid(gates), `count` numbers each.
  void (*multiply_gates)(const T* x, const T* gates, int64_t count, T* output);
};

template <class T>
const DeltaNetKernels<T>& delta_net_kernels(int level);

inline int64_t delta_net_tasks(const DeltaNetLayer& net, const StateStep& step) {
  return step.num_tokens * net.num_key_heads;
}

}  // namespace glimpse
