// Gated short convolutions, for callers that run several operations in one parallel region. The reference
// implementation is engine/worker/layers/short_conv.py.
#pragma once

#include "delta_net.h"

namespace glimpse {

// The weights of a layer; declarations.py reads the fields here.
struct ShortConvLayer {
  const float* taps;  // [conv_size, width], those of the token itself last
  int64_t width, conv_size;
};

constexpr int64_t kConvChannels = 64;  // of a task

inline int64_t short_conv_tasks(const ShortConvLayer& layer) { return ceil_div(layer.width, kConvChannels); }

// Computes some channels of all parts, one after the other: a part may read what those before it have written. Tasks
// are numbered from 0 to `short_conv_tasks`, and independent. T is bf16 or float.
// projected: [tokens, 3 · width]. states: [states, conv_size - 1, width]. output: [tokens, width].
template <class T>
void run_short_conv(const ShortConvLayer& layer, const StatePart* parts, int64_t num_parts, const T* projected,
                    T* states, T* output, int64_t task);

}  // namespace glimpse
