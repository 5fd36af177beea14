// The recurrent step of gated delta nets: each state is read once from memory, and written once. Included after
// vectors.h, in the same namespace.
#pragma once

constexpr int kMaxHeadDim = 512;
constexpr int kVectors = 8;  // of columns or channels that are computed together
constexpr int kColumns = kVectors * kLanes;

#define INLINED __attribute__((always_inline)) inline

INLINED void store_row(float* to, f32v value, int64_t count) { store_f32(to, value, count); }
INLINED void store_row(bf16* to, f32v value, int64_t count) { store_bf16(to, value, count); }

INLINED float sum_of_squares(const float* x, int count) {
  f32v squares{};
  for (int i = 0; i < count; i += kLanes) {
    const f32v part = load_wide(x + i, count - i);
    squares = multiply_add(part, part, squares);
  }
  float sums[kLanes];
  store(sums, squares);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

// Calls `body(number of vectors, first, count)` for parts of `count` numbers: many vectors, then one, which may be cut.
template <class Body>
INLINED void for_columns(int count, const Body& body) {
  int first = 0;
  for (; first + kColumns <= count; first += kColumns) body(std::integral_constant<int, kVectors>(), first, kColumns);
  for (; first < count; first += kLanes) body(std::integral_constant<int, 1>(), first, count - first);
}

// Convolves `count` channels of a part's token, from channel `first` on, and applies SiLU.
template <class T>
INLINED void convolve(const StateStep<T>& step, const StatePart& part, int64_t token, int64_t first, int count,
                      float* convolved) {
  const int size = step.net.conv_size;
  for_columns(count, [&](auto vectors, int offset, int rest) __attribute__((always_inline)) {
    f32v sums[vectors] = {};
    for (int tap = 0; tap < size; ++tap) {
      const T* x = step.inputs(part, token - size + 1 + tap);
      if (!x) continue;
      x += first + offset;
      const float* taps = step.net.conv + tap * step.conv_width() + first + offset;
#pragma GCC unroll 8
      for (int v = 0, i = 0; v < vectors; ++v, i += kLanes)
        sums[v] = multiply_add(load_wide(x + i, rest - i), load_wide(taps + i, rest - i), sums[v]);
    }
#pragma GCC unroll 8
    for (int v = 0, i = 0; v < vectors; ++v, i += kLanes)
      store_f32(convolved + offset + i, sums[v] * sigmoid(sums[v]), rest - i);
  });
}

// Keeps the inputs of `count` channels for the next part. It may write the state that it reads.
template <class T>
INLINED void keep_channels(const StateStep<T>& step, const StatePart& part, int64_t first, int64_t count) {
  const int last = step.net.conv_size - 1;
  for (int tap = 0; tap < last; ++tap) {
    T* to = step.conv_states + (part.writes * last + tap) * step.conv_width() + first;
    if (const T* from = step.inputs(part, part.num_rows - last + tap))
      std::memmove(to, from + first, sizeof(T) * count);
    else std::memset(to, 0, sizeof(T) * count);
  }
}

template <class T>
void keep_inputs(const StateStep<T>& step, const StatePart& part) {
  keep_channels(step, part, 0, step.conv_width());
}

INLINED void scale_to(float* x, int count, float length) {
  const float scale = length / std::sqrt(sum_of_squares(x, count) + 1e-6f);
  for (int i = 0; i < count; i += kLanes) store_f32(x + i, load_wide(x + i, count - i) * scale, count - i);
}

// The vectors of a head of a token.
struct Token {
  const float *query, *key, *value;
  float decay, beta;
};

// Updates some columns of a state, whose rows have `stride` columns, and reads them. No `before`: zeros.
template <int kWidth>
INLINED void update_columns(const float* before, float* after, const Token& token, int key_dim, int64_t stride,
                            int64_t first, int64_t count, float* output) {
  f32v change[kWidth] = {}, sums[kWidth] = {};
  for (int k = 0; before && k < key_dim; ++k) {
    const f32v key = splat(token.key[k]);
#pragma GCC unroll 8
    for (int v = 0; v < kWidth; ++v) {
      const int64_t place = k * stride + first + v * kLanes;
      change[v] = multiply_add(load_wide(before + place, count - v * kLanes), key, change[v]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kWidth; ++v) {
    const f32v value = load_wide(token.value + first + v * kLanes, count - v * kLanes);
    change[v] = token.beta * (value - token.decay * change[v]);
  }
  for (int k = 0; k < key_dim; ++k) {
    const f32v key = splat(token.key[k]), query = splat(token.query[k]);
#pragma GCC unroll 8
    for (int v = 0; v < kWidth; ++v) {
      const int64_t place = k * stride + first + v * kLanes;
      f32v row = key * change[v];
      if (before) row = multiply_add(splat(token.decay), load_wide(before + place, count - v * kLanes), row);
      store_f32(after + place, row, count - v * kLanes);
      sums[v] = multiply_add(row, query, sums[v]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kWidth; ++v) store_f32(output + first + v * kLanes, sums[v], count - v * kLanes);
}

struct Rates {
  float beta, log_decay;
};

template <class T>
INLINED Rates rates_of(const StateStep<T>& step, int64_t row, int head) {
  const int num_values = step.net.num_value_heads;
  const T* own = step.rates + row * 2 * num_values + head;
  const float size = wide(own[num_values]) + step.net.decay_bias[head];
  const float softplus = size > 20.0f ? size : std::log1p(std::exp(size));
  return {1.0f / (1.0f + std::exp(-wide(own[0]))), -std::exp(step.net.decay[head]) * softplus};
}

// Normalizes a head of values of a token and applies its gates.
template <class T>
INLINED void write_output(const StateStep<T>& step, int64_t row, int head, const float* result) {
  const int dim = step.net.value_head_dim;
  const int64_t first = static_cast<int64_t>(head) * dim;
  const T* gates = step.projected + row * (step.conv_width() + step.values()) + step.conv_width() + first;
  T* to = step.output + row * step.values() + first;
  const float scale = 1.0f / std::sqrt(sum_of_squares(result, dim) / static_cast<float>(dim) + step.net.eps);
  for (int v = 0; v < dim; v += kLanes) {
    const f32v gate = load_wide(gates + v, dim - v), weight = load_wide(step.net.norm + v, dim - v);
    store_row(to + v, load_wide(result + v, dim - v) * scale * weight * (gate * sigmoid(gate)), dim - v);
  }
}

template <class T>
void update_token(const StateStep<T>& step, const StatePart& part, int key_head) {
  const int key_dim = step.net.key_head_dim, value_dim = step.net.value_head_dim;
  const auto channels = [&](int64_t first, int count, float* convolved) __attribute__((always_inline)) {
    convolve(step, part, 0, first, count, convolved);
    keep_channels(step, part, first, count);
  };
  float query[kMaxHeadDim], key[kMaxHeadDim], value[kMaxHeadDim], result[kMaxHeadDim];
  channels(static_cast<int64_t>(key_head) * key_dim, key_dim, query);
  channels(step.keys() + static_cast<int64_t>(key_head) * key_dim, key_dim, key);
  scale_to(query, key_dim, 1.0f / std::sqrt(static_cast<float>(key_dim)));
  scale_to(key, key_dim, 1.0f);
  for (int head = key_head * step.group(); head < (key_head + 1) * step.group(); ++head) {
    channels(2 * step.keys() + static_cast<int64_t>(head) * value_dim, value_dim, value);
    const Rates rates = rates_of(step, part.row, head);
    const Token token = {query, key, value, std::exp(rates.log_decay), rates.beta};
    const float* before = part.reads < 0 ? nullptr : step.state(part.reads, head);
    for_columns(value_dim, [&](auto vectors, int first, int count) __attribute__((always_inline)) {
      update_columns<vectors>(before, step.state(part.writes, head), token, key_dim, value_dim, first, count, result);
    });
    write_output(step, part.row, head, result);
  }
}

template <class T>
void multiply_gates(const T* x, const T* gates, int64_t count, T* output) {
  for (int64_t i = 0; i < count; i += kLanes)
    store_row(output + i, load_wide(x + i, count - i) * sigmoid(load_wide(gates + i, count - i)), count - i);
}
