// The recurrent step of gated delta nets: each state is read once from memory, and written once. The compiler
// vectorizes these loops for the level of the file that includes them.

constexpr int kMaxHeadDim = 512;

#define INLINED __attribute__((always_inline)) inline

INLINED float wide(float value) { return value; }
INLINED float wide(bf16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

INLINED void assign(float& to, float value) { to = value; }
INLINED void assign(bf16& to, float value) {  // to nearest, ties to even; NaN stays NaN
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  to = static_cast<bf16>(value == value ? rounded : 0x7fc0);
}

// e^x to 2e-7 of it, with x clamped to ±87.
INLINED float exponential(float x) {
  float power = std::min(std::max(x * 1.44269504088896341f, -126.0f), 126.0f);
  const float shifted = power + 12582912.0f;  // adding 1.5 · 2^23 rounds to an integer, in the lowest bits
  const float fraction = power - (shifted - 12582912.0f);
  power = 0.0013264725f;
  power = power * fraction + 0.009671513f;
  power = power * fraction + 0.055507336f;
  power = power * fraction + 0.24022242f;
  power = power * fraction + 0.693147f;
  power = power * fraction + 1.0f;
  std::uint32_t bits, scale;
  std::memcpy(&bits, &power, sizeof bits);
  std::memcpy(&scale, &shifted, sizeof scale);
  bits += scale << 23;
  std::memcpy(&power, &bits, sizeof power);
  return power;
}

INLINED float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

constexpr int kSums = 16;  // of which the compiler makes vectors

INLINED float sum_of_squares(const float* x, int count) {
  float sums[kSums] = {};
  int first = 0;
  for (; first + kSums <= count; first += kSums)
    for (int i = 0; i < kSums; ++i) sums[i] += x[first + i] * x[first + i];
  for (int i = 0; first + i < count; ++i) sums[i] += x[first + i] * x[first + i];
  for (int half = kSums / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

// Convolves `count` channels and applies SiLU. `before` and `after`: [conv_size - 1][stride], the inputs of the tokens
// before this one, and those that the next one will find; they may be the same. No `before`: zeros.
template <class T>
INLINED void convolve(const T* x, const float* taps, int conv_size, int64_t stride, int count, const T* before,
                      T* after, float* convolved) {
  const int last = conv_size - 1;
  for (int i = 0; i < count; ++i) convolved[i] = 0.0f;
  for (int tap = 0; before && tap < last; ++tap)
    for (int i = 0; i < count; ++i) convolved[i] += wide(before[tap * stride + i]) * taps[tap * stride + i];
  for (int i = 0; i < count; ++i) convolved[i] += wide(x[i]) * taps[last * stride + i];
  for (int i = 0; i < count; ++i) convolved[i] *= sigmoid(convolved[i]);
  for (int tap = 0; tap < last; ++tap) {
    T* to = after + tap * stride;
    if (tap + 1 == last) std::memcpy(to, x, sizeof(T) * count);
    else if (before) std::memmove(to, before + (tap + 1) * stride, sizeof(T) * count);
    else std::memset(to, 0, sizeof(T) * count);
  }
}

INLINED void scale_to(float* x, int count, float length) {
  const float scale = length / std::sqrt(sum_of_squares(x, count) + 1e-6f);
  for (int i = 0; i < count; ++i) x[i] *= scale;
}

// Updates one state, [key_dim][value_dim], and reads it. No `before`: zeros.
INLINED void update(const float* before, float* after, const float* query, const float* key, const float* value,
                    float decay, float beta, int key_dim, int value_dim, float* output) {
  float change[kMaxHeadDim] = {};
  for (int k = 0; before && k < key_dim; ++k)
    for (int v = 0; v < value_dim; ++v) change[v] += before[k * value_dim + v] * key[k];
  for (int v = 0; v < value_dim; ++v) change[v] = beta * (value[v] - decay * change[v]);
  for (int v = 0; v < value_dim; ++v) output[v] = 0.0f;
  for (int k = 0; k < key_dim; ++k) {
    float* row = after + k * value_dim;
    const float* old = before ? before + k * value_dim : nullptr;
    const float own_key = key[k], own_query = query[k];
    if (old) {
      for (int v = 0; v < value_dim; ++v) {
        const float number = decay * old[v] + own_key * change[v];
        row[v] = number;
        output[v] += number * own_query;
      }
    } else {
      for (int v = 0; v < value_dim; ++v) {
        const float number = own_key * change[v];
        row[v] = number;
        output[v] += number * own_query;
      }
    }
  }
}

template <class T>
void run_task(const DeltaNetLayer& net, const StateStep& step, const T* projected, const T* rates, T* conv_states,
              float* recurrent, T* output, int64_t task) {
  const int64_t token = task / net.num_key_heads;
  const int key_head = static_cast<int>(task % net.num_key_heads);
  const int key_dim = net.key_head_dim, value_dim = net.value_head_dim, num_values = net.num_value_heads;
  const int64_t keys = static_cast<int64_t>(net.num_key_heads) * key_dim;
  const int64_t values = static_cast<int64_t>(num_values) * value_dim, width = 2 * keys + values;
  const T* x = projected + token * (width + values);
  const T* gates = x + width;
  const int64_t reads = step.reads[token], writes = step.writes[token];
  const int64_t conv_numbers = (net.conv_size - 1) * width, numbers = values * key_dim;
  const T* before = reads < 0 ? nullptr : conv_states + reads * conv_numbers;
  T* after = conv_states + writes * conv_numbers;
  const auto channels = [&](int64_t first, int count, float* convolved) __attribute__((always_inline)) {
    convolve(x + first, net.conv + first, net.conv_size, width, count, before ? before + first : nullptr, after + first,
             convolved);
  };
  float query[kMaxHeadDim], key[kMaxHeadDim], value[kMaxHeadDim], result[kMaxHeadDim];
  channels(static_cast<int64_t>(key_head) * key_dim, key_dim, query);
  channels(keys + static_cast<int64_t>(key_head) * key_dim, key_dim, key);
  scale_to(query, key_dim, 1.0f / std::sqrt(static_cast<float>(key_dim)));
  scale_to(key, key_dim, 1.0f);
  const int group = num_values / net.num_key_heads;
  for (int head = key_head * group; head < (key_head + 1) * group; ++head) {
    const int64_t first = static_cast<int64_t>(head) * value_dim;
    channels(2 * keys + first, value_dim, value);
    const T* own = rates + token * 2 * num_values + head;
    const float beta = sigmoid(wide(own[0])), step_size = wide(own[num_values]) + net.decay_bias[head];
    const float softplus = step_size > 20.0f ? step_size : std::log1p(std::exp(step_size));
    const float decay = std::exp(-std::exp(net.decay[head]) * softplus);
    const int64_t place = first * key_dim;
    update(reads < 0 ? nullptr : recurrent + reads * numbers + place, recurrent + writes * numbers + place, query, key,
           value, decay, beta, key_dim, value_dim, result);
    const float scale = 1.0f / std::sqrt(sum_of_squares(result, value_dim) / static_cast<float>(value_dim) + net.eps);
    T* to = output + token * values + first;
    for (int v = 0; v < value_dim; ++v) {
      const float gate = wide(gates[first + v]);
      assign(to[v], result[v] * scale * net.norm[v] * (gate * sigmoid(gate)));
    }
  }
}

template <class T>
void multiply_gates(const T* x, const T* gates, int64_t count, T* output) {
  for (int64_t i = 0; i < count; ++i) assign(output[i], wide(x[i]) * sigmoid(wide(gates[i])));
}

template <class T>
constexpr DeltaNetKernels<T> kKernels = {run_task<T>, multiply_gates<T>};
