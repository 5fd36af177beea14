// Attention kernels in AVX-512, except the matrix product, which the including file defines first as `multiply`:
//
//   multiply(a, num_segments, depth, stride, num_rows, b, columns, num_queries, ahead, c)
//
// c[num_rows][columns] is the sum over segments s of a[s] · b[s], where a[s] has num_rows rows of `depth` bf16 with a
// row stride of `stride` elements, and b is [num_segments][depth / 2][columns][2]. Columns after the first num_queries
// may be left as they are. Meanwhile it may prefetch `ahead`.
//
// To be included inside an anonymous namespace after `#pragma GCC target`.

constexpr int kLanes = 16;

// 2^x for x <= 0 or -inf, to 3e-6; exactly 1 at 0. A polynomial for the fraction, the exponent by scalef.
inline __m512 exp2_vector(__m512 x) {
  const __m512 fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
  __m512 power = _mm512_set1_ps(0.01342668441393605f);
  power = _mm512_fmadd_ps(power, fraction, _mm512_set1_ps(0.052242473902045686f));
  power = _mm512_fmadd_ps(power, fraction, _mm512_set1_ps(0.24128020497992067f));
  power = _mm512_fmadd_ps(power, fraction, _mm512_set1_ps(0.6930448448535766f));
  power = _mm512_fmadd_ps(power, fraction, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(power, x);
}

// Infinity minus infinity is NaN, so the origin is 0 if all keys were masked.
inline __m512 finite_or_zero(__m512 max) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(max, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ), max);
}

// Transposes 16 rows of 16 32-bit elements.
inline void transpose(__m512i rows[16]) {
  __m512i pairs[16];
  for (int i = 0; i < 16; i += 4) {
    const __m512i low01 = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    const __m512i high01 = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    const __m512i low23 = _mm512_unpacklo_epi32(rows[i + 2], rows[i + 3]);
    const __m512i high23 = _mm512_unpackhi_epi32(rows[i + 2], rows[i + 3]);
    pairs[i] = _mm512_unpacklo_epi64(low01, low23);
    pairs[i + 1] = _mm512_unpackhi_epi64(low01, low23);
    pairs[i + 2] = _mm512_unpacklo_epi64(high01, high23);
    pairs[i + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i even01 = _mm512_shuffle_i32x4(pairs[i], pairs[i + 4], 0x88);
    const __m512i odd01 = _mm512_shuffle_i32x4(pairs[i], pairs[i + 4], 0xdd);
    const __m512i even23 = _mm512_shuffle_i32x4(pairs[i + 8], pairs[i + 12], 0x88);
    const __m512i odd23 = _mm512_shuffle_i32x4(pairs[i + 8], pairs[i + 12], 0xdd);
    rows[i] = _mm512_shuffle_i32x4(even01, even23, 0x88);
    rows[i + 4] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
    rows[i + 12] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
  }
}

inline __mmask16 first_lanes(int count) {
  return count >= kLanes ? 0xffff : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1);
}

void pack_queries(const bf16* const* rows, int head_dim, int query_dim, QueryTile& tile) {
  for (int pair = 0; pair < query_dim / 2; pair += kLanes) {
    const __mmask16 valid = first_lanes(head_dim / 2 - pair);
    const int num_pairs = query_dim / 2 - pair < kLanes ? query_dim / 2 - pair : kLanes;
    for (int column = 0; column < tile.columns; column += kLanes) {
      __m512i block[16];
      for (int i = 0; i < 16; ++i) {
        const bf16* row = rows[column + i];
        block[i] = row ? _mm512_maskz_loadu_epi32(valid, row + 2 * pair) : _mm512_setzero_si512();
      }
      transpose(block);
      for (int i = 0; i < num_pairs; ++i) {
        _mm512_store_si512(tile.packed + ((pair + i) * tile.columns + column) * 2, block[i]);
      }
    }
  }
}

void pack_keys(const bf16* keys, long stride, int num_keys, int head_dim, int query_dim, bf16* packed) {
  for (int key = 0; key < kBlockKeys; ++key) {
    for (int pair = 0; pair < query_dim / 2; pair += kLanes) {
      const __mmask16 valid = key < num_keys ? first_lanes(head_dim / 2 - pair) : 0;
      const __m512i row = _mm512_maskz_loadu_epi32(valid, keys + key * stride + 2 * pair);
      _mm512_mask_storeu_epi32(packed + key * query_dim + 2 * pair, first_lanes(query_dim / 2 - pair), row);
    }
  }
}

void pack_values(const bf16* values, long stride, int num_keys, int head_dim, bf16* packed) {
  alignas(64) static constexpr bf16 even[32] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                                32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
  const __m512i even_index = _mm512_load_si512(even);
  const __m512i odd_index = _mm512_add_epi16(even_index, _mm512_set1_epi16(1));
  for (int pair = 0; pair < head_dim / 2; pair += kLanes) {
    __m512i halves[2][16];
    for (int key = 0; key < kBlockKeys; ++key) {
      const __mmask16 valid = key < num_keys ? first_lanes(head_dim / 2 - pair) : 0;
      halves[key / 16][key % 16] = _mm512_maskz_loadu_epi32(valid, values + key * stride + 2 * pair);
    }
    transpose(halves[0]);
    transpose(halves[1]);
    for (int i = 0; i < kLanes && pair + i < head_dim / 2; ++i) {
      bf16* rows = packed + 2 * (pair + i) * kBlockKeys;
      _mm512_storeu_si512(rows, _mm512_permutex2var_epi16(halves[0][i], even_index, halves[1][i]));
      _mm512_storeu_si512(rows + kBlockKeys, _mm512_permutex2var_epi16(halves[0][i], odd_index, halves[1][i]));
    }
  }
}

// Returns the maxima of scores [num_rows][columns] in 16 columns; masked scores become -inf.
__m512 mask_and_find_max(const QueryTile& tile, const KeyRange<bf16>& range, Visible visible, int num_rows, int column,
                         float* scores) {
  const __m512 hidden = _mm512_set1_ps(-INFINITY);
  const int columns = tile.columns;
  __m512 max = hidden, other_max = hidden;
  int row = 0;
  for (; row + 1 < visible.by_all; row += 2) {
    max = _mm512_max_ps(max, _mm512_load_ps(scores + row * columns));
    other_max = _mm512_max_ps(other_max, _mm512_load_ps(scores + (row + 1) * columns));
  }
  const __m512i limits = _mm512_sub_epi32(_mm512_load_si512(tile.limits + column), _mm512_set1_epi32(range.first));
  for (; row < num_rows; ++row) {
    const bool exists = row < visible.by_some;
    const __mmask16 seen = exists ? _mm512_cmpgt_epi32_mask(limits, _mm512_set1_epi32(row)) : __mmask16{0};
    const __m512 score = _mm512_mask_loadu_ps(hidden, seen, scores + row * columns);
    _mm512_store_ps(scores + row * columns, score);
    max = _mm512_max_ps(max, score);
  }
  return _mm512_max_ps(max, other_max);
}

// Multiplies each row of scores [num_rows][columns] by its scale.
void scale_rows(const float* scales, int num_rows, int columns, float* scores) {
  for (int row = 0; row < num_rows; ++row, scores += columns) {
    for (int column = 0; column < columns; column += kLanes) {
      const __m512 score = _mm512_load_ps(scores + column);
      _mm512_store_ps(scores + column, _mm512_mul_ps(score, _mm512_set1_ps(scales[row])));
    }
  }
}

// Converts scores [num_rows][columns] to weights, maxima and sums. The scales of values are those of weights.
void softmax(const HeadShape& shape, const QueryTile& tile, const KeyRange<bf16>& range, Visible visible, int num_rows,
             Workspace& workspace, Partial& partial) {
  // Rounding two rows returns 16 values of the first and 16 of the second; the matrix units require them interleaved.
  alignas(64) static constexpr bf16 alternate[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i alternating = _mm512_load_si512(alternate);
  const __m512 scale = _mm512_set1_ps(shape.scale);
  const int columns = tile.columns;
  for (int column = 0; column < columns; column += kLanes) {
    float* scores = workspace.scores + column;
    bf16* weights = workspace.weights + 2 * column;
    const __m512 max = _mm512_mul_ps(mask_and_find_max(tile, range, visible, num_rows, column, scores), scale);
    const __m512 origin = finite_or_zero(max);
    __m512 even_sum = _mm512_setzero_ps(), odd_sum = _mm512_setzero_ps();
    for (int row = 0; row < num_rows; row += 2) {
      __m512 even = exp2_vector(_mm512_fmsub_ps(_mm512_load_ps(scores + row * columns), scale, origin));
      __m512 odd = exp2_vector(_mm512_fmsub_ps(_mm512_load_ps(scores + (row + 1) * columns), scale, origin));
      even_sum = _mm512_add_ps(even_sum, even);
      odd_sum = _mm512_add_ps(odd_sum, odd);
      if (range.value_scales) {
        even = _mm512_mul_ps(even, _mm512_set1_ps(range.value_scales[row]));
        odd = _mm512_mul_ps(odd, _mm512_set1_ps(range.value_scales[row + 1]));
      }
      const __m512i rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
      _mm512_store_si512(weights + row * columns, _mm512_permutexvar_epi16(alternating, rounded));
    }
    _mm512_store_ps(partial.max + column, max);
    _mm512_store_ps(partial.sum + column, _mm512_add_ps(even_sum, odd_sum));
  }
}

void attend(const HeadShape& shape, const QueryTile& tile, const KeyRange<bf16>& range, Workspace& workspace,
            Partial& partial) {
  const int depth = shape.query_dim % 32 ? 16 : 32;
  const int num_segments = shape.query_dim / depth;
  const Visible visible = visible_keys(tile, range);
  const int num_blocks = (visible.by_some + kBlockKeys - 1) / kBlockKeys;
  for (int block = 0; block < num_blocks; ++block) {
    const bf16* segments[kMaxHeadDim / 16];
    for (int segment = 0; segment < num_segments; ++segment) {
      segments[segment] = range.keys[block] + segment * depth;
    }
    multiply(segments, num_segments, depth, shape.query_dim, kBlockKeys, tile.packed, tile.columns, tile.num_queries,
             ahead_of(range, block, num_blocks), workspace.scores + block * kBlockKeys * tile.columns);
  }
  if (range.key_scales) scale_rows(range.key_scales, num_blocks * kBlockKeys, tile.columns, workspace.scores);
  hide_keys(tile, range.first, visible.hidden, workspace.scores);
  softmax(shape, tile, range, visible, num_blocks * kBlockKeys, workspace, partial);
  multiply(range.values, num_blocks, kBlockKeys, range.value_stride, shape.value_dim, workspace.weights, tile.columns,
           tile.num_queries, {}, partial.out);
}

void merge(int value_dim, int columns, const Partial& from, Partial& into) {
  for (int column = 0; column < columns; column += kLanes) {
    const __m512 from_max = _mm512_load_ps(from.max + column);
    const __m512 into_max = _mm512_load_ps(into.max + column);
    const __m512 max = _mm512_max_ps(from_max, into_max);
    const __m512 origin = finite_or_zero(max);
    const __m512 from_factor = exp2_vector(_mm512_sub_ps(from_max, origin));
    const __m512 into_factor = exp2_vector(_mm512_sub_ps(into_max, origin));
    const auto add = [&](const float* addend, float* sum) {
      const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(sum), into_factor);
      _mm512_store_ps(sum, _mm512_fmadd_ps(_mm512_load_ps(addend), from_factor, scaled));
    };
    _mm512_store_ps(into.max + column, max);
    add(from.sum + column, into.sum + column);
    for (int i = 0; i < value_dim; ++i) {
      add(from.out + i * columns + column, into.out + i * columns + column);
    }
  }
}

void finish(int value_dim, int columns, const Partial& partial, bf16* const* rows) {
  for (int column = 0; column < columns; column += kLanes) {
    const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_load_ps(partial.sum + column));
    for (int dim = 0; dim < value_dim; dim += kLanes) {
      __m512i block[16];
      for (int i = 0; i < 16; ++i) {
        const __m512 out = _mm512_load_ps(partial.out + (dim + i) * columns + column);
        block[i] = _mm512_castps_si512(_mm512_mul_ps(out, inverse));
      }
      transpose(block);
      for (int i = 0; i < 16; ++i) {
        if (rows[column + i]) {
          const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_castsi512_ps(block[i]));
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows[column + i] + dim), reinterpret_cast<__m256i>(rounded));
        }
      }
    }
  }
}
