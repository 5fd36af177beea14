// Gated short convolutions: a few operations for each number that is read, so any instruction set keeps up with memory.
#include "short_conv.h"

#include <algorithm>
#include <cstring>

#include "numbers.h"

namespace glimpse {
namespace {

// Some channels of a part.
template <class T>
struct Channels {
  const T* projected;  // of the first token
  const T* before;     // state; null: zeros
  int64_t width, last, count;

  // An input of the convolution, rounded as the state keeps it.
  T input(int64_t token, int64_t channel) const {
    const T* row = projected + token * 3 * width + channel;
    T product;
    assign(product, wide(row[0]) * wide(row[2 * width]));
    return product;
  }

  // Adds a token's inputs times their taps. Tokens below 0 are in the state.
  void add(int64_t token, const float* taps, float* sums) const {
    if (token >= 0) {
      for (int64_t i = 0; i < count; ++i) sums[i] += wide(input(token, i)) * taps[i];
    } else if (before) {
      const T* old = before + (token + last) * width;
      for (int64_t i = 0; i < count; ++i) sums[i] += wide(old[i]) * taps[i];
    }
  }

  // Copies a token's inputs into a state, which may be `before` if tokens are copied in their order.
  void keep(int64_t token, T* to) const {
    if (token >= 0) {
      for (int64_t i = 0; i < count; ++i) to[i] = input(token, i);
    } else if (before) {
      std::memmove(to, before + (token + last) * width, count * sizeof(T));
    } else {
      std::memset(to, 0, count * sizeof(T));
    }
  }
};

}  // namespace

template <class T>
void run_short_conv(const ShortConvLayer& layer, const StatePart* parts, int64_t num_parts, const T* projected,
                    T* states, T* output, int64_t task) {
  const int64_t first = task * kConvChannels, width = layer.width, last = layer.conv_size - 1;
  const int64_t count = std::min(kConvChannels, width - first);
  for (const StatePart* part = parts; part < parts + num_parts; ++part) {
    const T* rows = projected + part->row * 3 * width + first;
    const Channels<T> channels = {rows, part->reads < 0 ? nullptr : states + part->reads * last * width + first, width,
                                  last, count};
    for (int64_t token = 0; token < part->num_rows; ++token) {
      float sums[kConvChannels] = {};
      for (int64_t tap = 0; tap <= last; ++tap)
        channels.add(token + tap - last, layer.taps + tap * width + first, sums);
      const T* gates = rows + token * 3 * width + width;
      T* to = output + (part->row + token) * width + first;
      for (int64_t i = 0; i < count; ++i) assign(to[i], wide(gates[i]) * sums[i]);
    }
    T* after = states + part->writes * last * width + first;
    for (int64_t tap = 0; tap < last; ++tap) channels.keep(part->num_rows + tap - last, after + tap * width);
  }
}

template void run_short_conv(const ShortConvLayer&, const StatePart*, int64_t, const bf16*, bf16*, bf16*, int64_t);
template void run_short_conv(const ShortConvLayer&, const StatePart*, int64_t, const float*, float*, float*, int64_t);

}  // namespace glimpse

using glimpse::DType;
using glimpse::ShortConvLayer;
using glimpse::StatePart;

// Updates states with a step's tokens; see `run_short_conv`.
extern "C" void glimpse_short_conv(DType dtype, const ShortConvLayer* layer, const StatePart* parts, int64_t num_parts,
                                   const void* projected, void* states, void* output) {
  glimpse::with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t num_tasks = glimpse::short_conv_tasks(*layer);
#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < num_tasks; ++task) {
      glimpse::run_short_conv(*layer, parts, num_parts, static_cast<const T*>(projected), static_cast<T*>(states),
                              static_cast<T*>(output), task);
    }
  });
}
