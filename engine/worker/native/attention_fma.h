// Attention kernels in float32, for queries, keys and values in float32, and for those in bf16 on processors without
// bf16 dot products, which are widened.
//
// A column's operations and their order are the same in vectors of any number of lanes, so that its result does not
// depend on the vector that holds it. The including file defines first, after including attention_lanes.h:
//
//   for_vectors(columns, body): calls body(Lanes{}, column) for each vector of `columns` floats, a multiple of kSide.
//   multiply(a, num_segments, depth, stride, num_rows, b, columns, ahead, panel, c):
//     c[num_rows][columns] is the sum over segments s of a[s] · b[s], where a[s] has num_rows rows of `depth` numbers
//     with a row stride of `stride` elements, and b is float [num_segments · depth][columns]. num_rows and depth are
//     multiples of 16. `panel` is scratch of kPanelRows · kPanelStride floats.
//
// To be included inside an anonymous namespace after `#pragma GCC target`.

// 2^x for x <= 0 or -inf, to 3e-6; exactly 1 at 0, and 0 below 2^-126. NaN stays NaN.
template <class Lanes>
inline typename Lanes::Vector exp2_vector(typename Lanes::Vector x) {
  const auto rounding = Lanes::splat(12582912.0f + 127.0f);  // adding 1.5 · 2^23 rounds to an integer
  const auto bounded = Lanes::max(Lanes::splat(-127.0f), x);
  const auto shifted = bounded + rounding;
  const auto fraction = bounded - (shifted - rounding);
  auto power = Lanes::splat(0.0095828529447317123f);
  power = Lanes::fma(power, fraction, Lanes::splat(0.055906426161527634f));
  power = Lanes::fma(power, fraction, Lanes::splat(0.24024099111557007f));
  power = Lanes::fma(power, fraction, Lanes::splat(0.69312417507171631f));
  power = Lanes::fma(power, fraction, Lanes::splat(1.0f));
  return power * Lanes::power_from_low_bits(shifted);
}

template <class T>
void pack_queries(const T* const* rows, int head_dim, int query_dim, QueryTile& tile) {
  for (int column = 0; column < tile.columns; column += kSide) {
    for (int dim = 0; dim < query_dim; dim += kSide) {
      SquareRow block[kSide];
      for (int i = 0; i < kSide; ++i) {
        const T* row = rows[column + i];
        block[i] = row && dim < head_dim ? Base::widen(row + dim) : Base::splat(0.0f);
      }
      transpose(block);
      for (int i = 0; i < kSide; ++i) Base::store(tile.wide + (dim + i) * tile.columns + column, block[i]);
    }
  }
}

template <class T>
void pack_keys(const T* keys, long stride, int num_keys, int head_dim, int query_dim, T* packed) {
  for (int key = 0; key < kBlockKeys; ++key, packed += query_dim) {
    const int num_valid = key < num_keys ? head_dim : 0;
    __builtin_memcpy(packed, keys + key * stride, sizeof(T) * num_valid);
    __builtin_memset(packed + num_valid, 0, sizeof(T) * (query_dim - num_valid));
  }
}

template <class T>
void pack_values(const T* values, long stride, int num_keys, int head_dim, T* packed) {
  for (int dim = 0; dim < head_dim; dim += kSide) {
    for (int key = 0; key < kBlockKeys; key += kSide) {
      decltype(row_of_square(T{})) block[kSide];
      for (int i = 0; i < kSide; ++i) {
        if (key + i < num_keys) __builtin_memcpy(&block[i], values + (key + i) * stride + dim, sizeof block[i]);
        else block[i] = row_of_square(T{});
      }
      transpose(block);
      for (int i = 0; i < kSide; ++i)
        __builtin_memcpy(packed + (dim + i) * kBlockKeys + key, &block[i], sizeof block[i]);
    }
  }
}

// Returns the maxima of scores [num_rows][columns] in the lanes from `column` on; masked scores become -inf.
template <class Lanes>
typename Lanes::Vector mask_and_find_max(const QueryTile& tile, int first_key, Visible visible, int num_rows,
                                         int column, float* scores) {
  const int columns = tile.columns;
  auto max = Lanes::splat(-INFINITY), other_max = max;
  int row = 0;
  for (; row + 1 < visible.by_all; row += 2) {
    max = Lanes::max(max, Lanes::load(scores + row * columns));
    other_max = Lanes::max(other_max, Lanes::load(scores + (row + 1) * columns));
  }
  for (; row < visible.by_some; ++row) {
    const auto score = Lanes::load_visible(scores + row * columns, tile.limits + column, first_key + row);
    Lanes::store(scores + row * columns, score);
    max = Lanes::max(max, score);
  }
  for (; row < num_rows; ++row) Lanes::store(scores + row * columns, Lanes::splat(-INFINITY));
  return Lanes::max(max, other_max);
}

// Converts scores [num_rows][columns] to weights in place, and to maxima and sums, in the lanes from `column` on.
template <class Lanes>
void softmax(const HeadShape& shape, const QueryTile& tile, int first_key, Visible visible, int num_rows, int column,
             float* scores, Partial& partial) {
  const auto scale = Lanes::splat(shape.scale);
  const auto max = mask_and_find_max<Lanes>(tile, first_key, visible, num_rows, column, scores) * scale;
  const auto origin = Lanes::finite_or_zero(max);
  auto even_sum = Lanes::splat(0.0f), odd_sum = even_sum;
  for (float *row = scores, *end = scores + num_rows * tile.columns; row < end; row += 2 * tile.columns) {
    const auto even = exp2_vector<Lanes>(Lanes::fms(Lanes::load(row), scale, origin));
    const auto odd = exp2_vector<Lanes>(Lanes::fms(Lanes::load(row + tile.columns), scale, origin));
    even_sum = even_sum + even;
    odd_sum = odd_sum + odd;
    Lanes::store(row, even);
    Lanes::store(row + tile.columns, odd);
  }
  Lanes::store(partial.max + column, max);
  Lanes::store(partial.sum + column, even_sum + odd_sum);
}

// Multiplies each row of scores or weights [num_rows][columns] by its scale.
void scale_rows(const float* scales, int num_rows, int columns, float* rows) {
  for_vectors(columns, [&](auto lanes, int column) {
    using Lanes = decltype(lanes);
    for (int row = 0; row < num_rows; ++row) {
      float* place = rows + row * columns + column;
      Lanes::store(place, Lanes::load(place) * Lanes::splat(scales[row]));
    }
  });
}

template <class T>
void attend(const HeadShape& shape, const QueryTile& tile, const KeyRange<T>& range, Workspace& workspace,
            Partial& partial) {
  const Visible visible = visible_keys(tile, range);
  const int num_blocks = (visible.by_some + kBlockKeys - 1) / kBlockKeys;
  for (int block = 0; block < num_blocks; ++block) {
    multiply(&range.keys[block], 1, shape.query_dim, shape.query_dim, kBlockKeys, tile.wide, tile.columns,
             ahead_of(range, block, num_blocks), workspace.panel, workspace.scores + block * kBlockKeys * tile.columns);
  }
  const int num_rows = num_blocks * kBlockKeys;
  if (range.key_scales) scale_rows(range.key_scales, num_rows, tile.columns, workspace.scores);
  hide_keys(tile, range.first, visible.hidden, workspace.scores);
  for_vectors(tile.columns, [&](auto lanes, int column) {
    softmax<decltype(lanes)>(shape, tile, range.first, visible, num_rows, column, workspace.scores + column, partial);
  });
  if (range.value_scales) scale_rows(range.value_scales, num_rows, tile.columns, workspace.scores);
  multiply(range.values, num_blocks, kBlockKeys, range.value_stride, shape.value_dim, workspace.scores, tile.columns,
           {}, workspace.panel, partial.out);
}

template <class Lanes>
void merge_vector(int value_dim, int columns, int column, const Partial& from, Partial& into) {
  const auto from_max = Lanes::load(from.max + column), into_max = Lanes::load(into.max + column);
  const auto max = Lanes::max(from_max, into_max);
  const auto origin = Lanes::finite_or_zero(max);
  const auto from_factor = exp2_vector<Lanes>(from_max - origin);
  const auto into_factor = exp2_vector<Lanes>(into_max - origin);
  const auto add = [&](const float* addend, float* sum) {
    Lanes::store(sum, Lanes::fma(Lanes::load(addend), from_factor, Lanes::load(sum) * into_factor));
  };
  Lanes::store(into.max + column, max);
  add(from.sum + column, into.sum + column);
  for (int i = column; i < value_dim * columns; i += columns) add(from.out + i, into.out + i);
}

void merge(int value_dim, int columns, const Partial& from, Partial& into) {
  for_vectors(columns,
              [&](auto lanes, int column) { merge_vector<decltype(lanes)>(value_dim, columns, column, from, into); });
}

template <class T>
void finish(int value_dim, int columns, const Partial& partial, T* const* rows) {
  for (int column = 0; column < columns; column += kSide) {
    const SquareRow inverse = Base::splat(1.0f) / Base::load(partial.sum + column);
    for (int dim = 0; dim < value_dim; dim += kSide) {
      SquareRow block[kSide];
      for (int i = 0; i < kSide; ++i) block[i] = Base::load(partial.out + (dim + i) * columns + column) * inverse;
      transpose(block);
      for (int i = 0; i < kSide; ++i) {
        if (rows[column + i]) Base::narrow(block[i], rows[column + i] + dim);
      }
    }
  }
}

void enter() {}
void leave() {}

template <class T>
constexpr AttentionKernels<T> float_kernels() {
  return {kSide, enter, leave, pack_queries<T>, pack_keys<T>, pack_values<T>, attend<T>, merge, finish<T>};
}
