// Gated delta nets for prompts: the updates of 64 tokens at once (section 3.3 of arXiv 2412.06464). Included after
// vectors.h and delta_net_kernels.h, in the same namespace.
//
// With S the state before a chunk, G_t the decay from its start to token t, and k, v, q, b the tokens' keys, values,
// queries and rates, the rows that tokens write solve a unit triangular system,
//   w_t = b_t (v_t - G_t k_tᵀ S) - Σ over j < t of b_t (G_t / G_j) (k_t · k_j) w_j,
// and the outputs and the next state are
//   o_t = G_t q_tᵀ S + Σ over j <= t of (G_t / G_j) (q_t · k_j) w_j,
//   S' = G_63 S + Σ over t of (G_63 / G_t) k_t w_tᵀ.
// All of this is computed for a strip of columns at a time, which stays in the L1 cache.
#pragma once

constexpr int kChunk = 64;
constexpr int kRows = kLanes == 16 ? 8 : 4;  // of a tile, whose sums are in registers; at most kLanes
constexpr int kStrip = 2 * kLanes;
constexpr int kSpread = 16;  // so that the same place in several rows is not in the same cache set
constexpr int kStride = kChunk + kSpread;
constexpr float kLog2E = 1.44269504088896341f;

using Tile = f32v[kRows][2];

INLINED int round_up(int count, int multiple) { return (count + multiple - 1) / multiple * multiple; }

INLINED void clear(Tile& tile) {
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) tile[row][0] = tile[row][1] = f32v{};
}

INLINED void store_tile(const Tile& tile, float* to, int stride) {
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < 2; ++v) store(to + row * stride + v * kLanes, tile[row][v]);
}

// Adds the sum over i < depth of a[i][row] · b[i][column].
INLINED void add_products(Tile& tile, const float* a, int a_stride, const float* b, int b_stride, int depth) {
  for (int i = 0; i < depth; ++i) {
    const f32v left = load<f32v>(b + i * b_stride), right = load<f32v>(b + i * b_stride + kLanes);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const f32v factor = splat(a[i * a_stride + row]);
      tile[row][0] = multiply_add(factor, left, tile[row][0]);
      tile[row][1] = multiply_add(factor, right, tile[row][1]);
    }
  }
}

// Adds to each row the rows before it times system[before][row].
INLINED void solve_tile(Tile& tile, const float* system) {
#pragma GCC unroll 8
  for (int before = 0; before < kRows; ++before) {
#pragma GCC unroll 8
    for (int row = before + 1; row < kRows; ++row) {
      const f32v factor = splat(system[before * kStride + row]);
      tile[row][0] = multiply_add(factor, tile[before][0], tile[row][0]);
      tile[row][1] = multiply_add(factor, tile[before][1], tile[row][1]);
    }
  }
}

// Transposes 64 rows of `count` floats, a multiple of kSide, into rows with a stride of kStride.
INLINED void transpose_rows(const float* rows, int stride, int count, float* transposed) {
  for (int row = 0; row < kChunk; row += kSide) {
    for (int column = 0; column < count; column += kSide) {
      SquareRow block[kSide];
#pragma GCC unroll 8
      for (int i = 0; i < kSide; ++i) block[i] = load_side(rows + (row + i) * stride + column);
      transpose(block);
#pragma GCC unroll 8
      for (int i = 0; i < kSide; ++i) store_side(transposed + (column + i) * kStride + row, block[i]);
    }
  }
}

template <class T>
class Chunks {
 public:
  Chunks(const StateStep<T>& step, const StatePart& part, ValueHeads heads, float* scratch)
      : step_(step), part_(part), heads_(heads), key_dim_(round_up(step.net.key_head_dim, 16)),
        value_dim_(round_up(step.net.value_head_dim, kStrip)), next_(scratch) {
    keys_ = take(kChunk * key_stride());
    rows_ = take(kChunk * row_stride());
    keys_t_ = take(key_dim_ * kStride);
    queries_t_ = take(key_dim_ * kStride);
    for (float** products : {&key_products_, &query_products_, &system_, &attention_})
      *products = take(kChunk * kStride);
    written_ = take(kChunk * kStrip);
    states_ = take(static_cast<int64_t>(heads.end - heads.first) * key_dim_ * value_dim_);
  }

  int64_t num_floats(const float* scratch) const { return next_ - scratch; }

  void run() {
    for (int head = heads_.first; head < heads_.end; ++head) load_state(head);
    for (token_ = 0; token_ < part_.num_rows; token_ += kChunk) {
      num_tokens_ = static_cast<int>(std::min<int64_t>(kChunk, part_.num_rows - token_));
      num_rows_ = round_up(num_tokens_, kRows);
      load_keys();
      for (int head = heads_.first; head < heads_.end; ++head) update(head);
    }
    for (int head = heads_.first; head < heads_.end; ++head) store_state(head);
  }

 private:
  float* take(int64_t count) {
    float* taken = next_;
    next_ += count;
    return taken;
  }

  int key_stride() const { return key_dim_ + kSpread; }
  int row_stride() const { return std::max(key_dim_, value_dim_) + kSpread; }
  float* strips(int head) const { return states_ + static_cast<int64_t>(head - heads_.first) * key_dim_ * value_dim_; }

  // Copies a state into strips of columns, padded with zeros.
  void load_state(int head) {
    const int dim = step_.net.value_head_dim;
    float* strips = this->strips(head);
    std::memset(strips, 0, sizeof(float) * key_dim_ * value_dim_);
    if (part_.reads < 0) return;
    const float* state = step_.state(part_.reads, head);
    for (int first = 0; first < dim; first += kStrip, strips += key_dim_ * kStrip)
      for (int k = 0; k < step_.net.key_head_dim; ++k)
        std::memcpy(strips + k * kStrip, state + k * dim + first, sizeof(float) * std::min(kStrip, dim - first));
  }

  void store_state(int head) const {
    const int dim = step_.net.value_head_dim;
    const float* strips = this->strips(head);
    float* state = step_.state(part_.writes, head);
    for (int first = 0; first < dim; first += kStrip, strips += key_dim_ * kStrip)
      for (int k = 0; k < step_.net.key_head_dim; ++k)
        std::memcpy(state + k * dim + first, strips + k * kStrip, sizeof(float) * std::min(kStrip, dim - first));
  }

  // Convolves a head of the chunk's tokens. What lies beyond tokens and channels is zero.
  void load_rows(int64_t first, int dim, int padded_dim, float* rows, int stride) const {
    for (int t = 0; t < num_tokens_; ++t) {
      convolve(step_, part_, token_ + t, first, dim, rows + t * stride);
      std::fill(rows + t * stride + dim, rows + t * stride + padded_dim, 0.0f);
    }
    for (int t = num_tokens_; t < kChunk; ++t) std::fill(rows + t * stride, rows + t * stride + padded_dim, 0.0f);
  }

  // Prepares what the heads of values share.
  void load_keys() {
    const int dim = step_.net.key_head_dim;
    const int64_t first = static_cast<int64_t>(heads_.key_head) * dim;
    load_rows(first, dim, key_dim_, rows_, row_stride());
    load_rows(step_.keys() + first, dim, key_dim_, keys_, key_stride());
    for (int t = 0; t < num_tokens_; ++t) {
      scale_to(rows_ + t * row_stride(), dim, 1.0f / std::sqrt(static_cast<float>(dim)));
      scale_to(keys_ + t * key_stride(), dim, 1.0f);
    }
    transpose_rows(rows_, row_stride(), key_dim_, queries_t_);
    transpose_rows(keys_, key_stride(), key_dim_, keys_t_);
    for (int row = 0; row < num_rows_; row += kRows) {
      for (int column = row / kStrip * kStrip; column < num_rows_; column += kStrip) {
        multiply_keys(row, keys_t_ + column, key_products_ + column);
        multiply_keys(row, queries_t_ + column, query_products_ + column);
      }
    }
  }

  // Products of kRows keys, each a row, with other keys or queries.
  void multiply_keys(int row, const float* others, float* products) const {
    Tile sums;
    clear(sums);
    add_products(sums, keys_t_ + row, kStride, others, kStride, step_.net.key_head_dim);
    store_tile(sums, products + row * kStride, kStride);
  }

  // Computes the factors that depend on decays and rates: system[j][t] and attention[j][t] are those of w_j above.
  void load_rates(int head) {
    float total[kChunk], sum = 0.0f;
    for (int t = 0; t < kChunk; ++t) {
      beta_[t] = 0.0f;
      if (t < num_tokens_) {
        const Rates rates = rates_of(step_, part_.row + token_ + t, head);
        beta_[t] = rates.beta;
        sum += rates.log_decay;
      }
      total[t] = sum;
    }
    for (int t = 0; t < kChunk; t += kLanes) {
      store(passed_ + t, power_of_two(load<f32v>(total + t) * kLog2E));
      store(left_ + t, power_of_two((sum - load<f32v>(total + t)) * kLog2E));
    }
    i32v lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = i;
    for (int j = 0; j < num_rows_; ++j) {
      for (int t = j / kLanes * kLanes; t < num_rows_; t += kLanes) {
        const i32v distance = lane + (t - j);
        const int place = j * kStride + t;
        const f32v decay = power_of_two((load<f32v>(total + t) - total[j]) * kLog2E);
        const f32v of_key = -load<f32v>(beta_ + t) * decay * load<f32v>(key_products_ + place);
        const f32v of_query = decay * load<f32v>(query_products_ + place);
        store(system_ + place, distance > 0 ? of_key : f32v{});
        store(attention_ + place, distance >= 0 ? of_query : f32v{});
      }
    }
  }

  void update(int head) {
    const int dim = step_.net.value_head_dim;
    load_rates(head);
    load_rows(2 * step_.keys() + static_cast<int64_t>(head) * dim, dim, value_dim_, rows_, row_stride());
    for (int first = 0; first < value_dim_; first += kStrip) {
      float* state = strips(head) + first * key_dim_;
      write_rows(rows_ + first, state);
      read_rows(rows_ + first, state);
      update_strip(state);
    }
    for (int t = 0; t < num_tokens_; ++t) write_output(step_, part_.row + token_ + t, head, rows_ + t * row_stride());
  }

  // Computes what the tokens write.
  void write_rows(const float* values, const float* state) {
    for (int row = 0; row < num_rows_; row += kRows) {
      Tile sums;
      clear(sums);
      add_products(sums, keys_t_ + row, kStride, state, kStrip, step_.net.key_head_dim);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const float* value = values + (row + i) * row_stride();
        const f32v beta = splat(beta_[row + i]), passed = splat(passed_[row + i]);
        for (int v = 0; v < 2; ++v) sums[i][v] = beta * (load<f32v>(value + v * kLanes) - passed * sums[i][v]);
      }
      add_products(sums, system_ + row, kStride, written_, kStrip, row);
      solve_tile(sums, system_ + row * kStride + row);
      store_tile(sums, written_ + row * kStrip, kStrip);
    }
  }

  // Computes the tokens' outputs.
  void read_rows(float* outputs, const float* state) const {
    for (int row = 0; row < num_rows_; row += kRows) {
      Tile sums;
      clear(sums);
      add_products(sums, queries_t_ + row, kStride, state, kStrip, step_.net.key_head_dim);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i)
        for (int v = 0; v < 2; ++v) sums[i][v] *= passed_[row + i];
      add_products(sums, attention_ + row, kStride, written_, kStrip, row + kRows);
      store_tile(sums, outputs + row * row_stride(), row_stride());
    }
  }

  void update_strip(float* state) {
    for (int t = 0; t < num_tokens_; ++t)
      for (int i = 0; i < kStrip; ++i) written_[t * kStrip + i] *= left_[t];
    for (int k = 0; k < key_dim_; k += kRows) {
      Tile sums;
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i)
        for (int v = 0; v < 2; ++v)
          sums[i][v] = passed_[kChunk - 1] * load<f32v>(state + (k + i) * kStrip + v * kLanes);
      add_products(sums, keys_ + k, key_stride(), written_, kStrip, num_tokens_);
      store_tile(sums, state + k * kStrip, kStrip);
    }
  }

  const StateStep<T>& step_;
  const StatePart part_;
  const ValueHeads heads_;
  const int key_dim_, value_dim_;  // padded
  float* next_;                    // the rest of the scratch
  float* keys_;                    // [64][key_stride]
  float* rows_;                    // [64][row_stride]: queries, or values and then outputs
  float *keys_t_, *queries_t_;     // [key_dim][kStride]
  float *key_products_, *query_products_, *system_, *attention_;  // [64][kStride]
  float* written_;                                                // [64][kStrip]
  float* states_;                                                 // [heads][strips][key_dim][kStrip]
  float beta_[kChunk], passed_[kChunk], left_[kChunk];
  int64_t token_ = 0;  // the chunk's first one, in the part
  int num_tokens_ = 0, num_rows_ = 0;
};

template <class T>
void update_many(const StateStep<T>& step, const StatePart& part, ValueHeads heads, float* scratch) {
  Chunks<T>(step, part, heads, scratch).run();
}

template <class T>
int64_t scratch_floats(const DeltaNetLayer& net) {
  const StateStep<T> step = {net, nullptr, nullptr, nullptr, nullptr, nullptr};
  return Chunks<T>(step, {}, {0, 0, step.group()}, nullptr).num_floats(nullptr);
}

template <class T>
constexpr DeltaNetKernels<T> kKernels = {update_token<T>, update_many<T>, scratch_floats<T>, keep_inputs<T>,
                                         multiply_gates<T>};
