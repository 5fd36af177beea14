// Gated delta nets, for callers that run several operations in one parallel region. The reference implementation is
// engine/worker/layers/delta_net.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "numbers.h"

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

// Consecutive tokens of a sequence. Python passes tables of these.
struct StatePart {
  int64_t row, num_rows;  // of the step's tokens
  int64_t reads;          // state before the tokens; negative: zeros
  int64_t writes;
};

// A layer's states and a step's tokens. T is bf16 or float.
template <class T>
struct StateStep {
  const DeltaNetLayer& net;
  const T* projected;  // [tokens, conv_width + value_width]
  const T* rates;      // [tokens, 2 · value_heads]
  T* conv_states;      // [states, conv_size - 1, conv_width]
  float* recurrent;    // [states, value_heads, key_head_dim, value_head_dim]
  T* output;           // [tokens, value_width]

  int64_t keys() const { return static_cast<int64_t>(net.num_key_heads) * net.key_head_dim; }
  int64_t values() const { return static_cast<int64_t>(net.num_value_heads) * net.value_head_dim; }
  int64_t conv_width() const { return 2 * keys() + values(); }
  int group() const { return net.num_value_heads / net.num_key_heads; }  // heads of values of a head of keys

  // What the convolution reads of a part's token, or of one before it, whose index is negative. Null: zeros.
  const T* inputs(const StatePart& part, int64_t token) const {
    if (token >= 0) return projected + (part.row + token) * (conv_width() + values());
    if (part.reads < 0) return nullptr;
    return conv_states + ((part.reads + 1) * (net.conv_size - 1) + token) * conv_width();
  }

  float* state(int64_t index, int64_t head) const {
    return recurrent + (index * net.num_value_heads + head) * net.key_head_dim * net.value_head_dim;
  }
};

// Heads of values, which have the same head of keys.
struct ValueHeads {
  int key_head, first, end;
};

// What a processor level gives gated delta nets.
template <class T>
struct DeltaNetKernels {
  // Updates the states of one head of keys, and of the heads of values that it serves, with a part of one token.
  void (*update)(const StateStep<T>& step, const StatePart& part, int key_head);
  // Updates the states of some heads of values with a part of any length, but not those of the convolution.
  void (*update_many)(const StateStep<T>& step, const StatePart& part, ValueHeads heads, float* scratch);
  // Size of the scratch, which is aligned to 64 bytes.
  int64_t (*scratch_floats)(const DeltaNetLayer& net);
  // Keeps what the convolution reads of the last tokens.
  void (*keep_inputs)(const StateStep<T>& step, const StatePart& part);
  // output = x · sigmoid(gates), `count` numbers each.
  void (*multiply_gates)(const T* x, const T* gates, int64_t count, T* output);
};

extern const DeltaNetKernels<bf16> kDeltaNetAvx2, kDeltaNetAvx512, kDeltaNetNeon;
extern const DeltaNetKernels<float> kDeltaNetAvx2Float, kDeltaNetAvx512Float, kDeltaNetNeonFloat;

// In the file of the architecture.
template <class T>
const DeltaNetKernels<T>& delta_net_kernels(int level);

}  // namespace glimpse
