// Attention for processors without bf16 instructions: loops over lanes that the compiler vectorizes.
#include <cmath>
#include <cstring>

#include "attention_kernels.h"

#pragma GCC target("avx2,fma")

namespace glimpse {
namespace {

constexpr int kRows = 4;  // rows whose sums are in registers at a time
constexpr int kLanes = 8;

inline float as_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t as_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Rounds to nearest, ties to even. NaN stays NaN.
inline bf16 round_to_bf16(float value) {
  const std::uint32_t bits = as_bits(value);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<bf16>(value == value ? rounded : 0x7fc0);
}

// 2^x for x <= 0 or -inf, exactly 1 at 0; results below 2^-126 become 0.
inline float exp2_lane(float x) {
  const float bounded = x > -127.0f ? x : -127.0f;
  const float whole = std::floor(bounded);
  const float fraction = bounded - whole;
  float power = 0.01342668441393605f;
  power = power * fraction + 0.052242473902045686f;
  power = power * fraction + 0.24128020497992067f;
  power = power * fraction + 0.6930448448535766f;
  power = power * fraction + 1.0f;
  const float exponent = as_float(static_cast<std::uint32_t>(static_cast<int>(whole) + 127) << 23);
  return x == x ? power * exponent : x;
}

inline float finite_or_zero(float max) { return max == -INFINITY ? 0.0f : max; }

void pack_queries(const bf16* const* rows, int head_dim, int query_dim, QueryTile& tile) {
  for (int column = 0; column < tile.columns; ++column) {
    for (int dim = 0; dim < query_dim; ++dim) {
      const bool valid = rows[column] && dim < head_dim;
      tile.packed[(dim / 2 * tile.columns + column) * 2 + dim % 2] = valid ? rows[column][dim] : 0;
    }
  }
}

void pack_keys(const bf16* keys, long stride, int num_keys, int head_dim, int query_dim, bf16* packed) {
  for (int key = 0; key < kBlockKeys; ++key) {
    for (int dim = 0; dim < query_dim; ++dim) {
      packed[key * query_dim + dim] = key < num_keys && dim < head_dim ? keys[key * stride + dim] : 0;
    }
  }
}

void pack_values(const bf16* values, long stride, int num_keys, int head_dim, bf16* packed) {
  for (int dim = 0; dim < head_dim; ++dim) {
    for (int key = 0; key < kBlockKeys; ++key) {
      packed[dim * kBlockKeys + key] = key < num_keys ? values[key * stride + dim] : 0;
    }
  }
}

inline std::uint32_t load_pair(const bf16* pair) {
  std::uint32_t bits;
  std::memcpy(&bits, pair, sizeof bits);
  return bits;
}

// sums[row][lane] += rows · pairs over one segment.
inline void multiply_segment(const bf16* rows, long stride, int depth, const bf16* pairs, int columns,
                             float sums[kRows][kLanes]) {
  for (int i = 0; i < depth; i += 2) {
    float even[kLanes], odd[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::uint32_t bits = load_pair(pairs + i * columns + 2 * lane);
      even[lane] = as_float(bits << 16);
      odd[lane] = as_float(bits & 0xffff0000u);
    }
    for (int row = 0; row < kRows; ++row) {
      const std::uint32_t bits = load_pair(rows + row * stride + i);
      const float first = as_float(bits << 16), second = as_float(bits & 0xffff0000u);
      for (int lane = 0; lane < kLanes; ++lane) sums[row][lane] += first * even[lane] + second * odd[lane];
    }
  }
}

// As described in attention_avx512.h.
void multiply(const bf16* const* a, int num_segments, int depth, long stride, int num_rows, const bf16* b, int columns,
              float* c) {
  for (int row = 0; row < num_rows; row += kRows) {
    for (int column = 0; column < columns; column += kLanes) {
      float sums[kRows][kLanes] = {};
      for (int segment = 0; segment < num_segments; ++segment) {
        multiply_segment(a[segment] + row * stride, stride, depth, b + segment * depth * columns + 2 * column, columns,
                         sums);
      }
      for (int i = 0; i < kRows; ++i) std::memcpy(c + (row + i) * columns + column, sums[i], sizeof sums[i]);
    }
  }
}

// Converts scores of lanes from `column` on to weights, maxima and sums; masks keys that a column must not attend to.
void softmax_lanes(const HeadShape& shape, const QueryTile& tile, const KeyRange& range, int num_rows, int column,
                   Workspace& workspace, Partial& partial) {
  const int columns = tile.columns;
  float max[kLanes], origin[kLanes], sum[kLanes];
  for (float& lane : max) lane = -INFINITY;
  for (int row = 0; row < num_rows; ++row) {
    float* scores = workspace.scores + row * columns + column;
    for (int lane = 0; lane < kLanes; ++lane) {
      const bool seen = row < range.num_keys && range.first + row < tile.limits[column + lane];
      scores[lane] = seen ? scores[lane] * shape.scale : -INFINITY;
      max[lane] = scores[lane] > max[lane] ? scores[lane] : max[lane];
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    origin[lane] = finite_or_zero(max[lane]);
    sum[lane] = 0.0f;
  }
  for (int row = 0; row < num_rows; ++row) {
    const float* scores = workspace.scores + row * columns + column;
    bf16* weights = workspace.weights + (row / 2 * columns + column) * 2 + row % 2;
    for (int lane = 0; lane < kLanes; ++lane) {
      const float weight = exp2_lane(scores[lane] - origin[lane]);
      sum[lane] += weight;
      weights[2 * lane] = round_to_bf16(weight);
    }
  }
  std::memcpy(partial.max + column, max, sizeof max);
  std::memcpy(partial.sum + column, sum, sizeof sum);
}

void attend(const HeadShape& shape, const QueryTile& tile, const KeyRange& range, Workspace& workspace,
            Partial& partial) {
  const int depth = shape.query_dim % 32 ? 16 : 32;
  const int num_segments = shape.query_dim / depth;
  const int num_blocks = (range.num_keys + kBlockKeys - 1) / kBlockKeys;
  for (int block = 0; block < num_blocks; ++block) {
    const bf16* segments[kMaxHeadDim / 16];
    for (int segment = 0; segment < num_segments; ++segment) {
      segments[segment] = range.keys[block] + segment * depth;
    }
    multiply(segments, num_segments, depth, shape.query_dim, kBlockKeys, tile.packed, tile.columns,
             workspace.scores + block * kBlockKeys * tile.columns);
  }
  for (int column = 0; column < tile.columns; column += kLanes) {
    softmax_lanes(shape, tile, range, num_blocks * kBlockKeys, column, workspace, partial);
  }
  multiply(range.values, num_blocks, kBlockKeys, range.value_stride, shape.value_dim, workspace.weights, tile.columns,
           partial.out);
}

void merge(int value_dim, int columns, const Partial& from, Partial& into) {
  for (int column = 0; column < columns; ++column) {
    const float max = from.max[column] > into.max[column] ? from.max[column] : into.max[column];
    const float origin = finite_or_zero(max);
    const float from_factor = exp2_lane(from.max[column] - origin);
    const float into_factor = exp2_lane(into.max[column] - origin);
    into.max[column] = max;
    into.sum[column] = into.sum[column] * into_factor + from.sum[column] * from_factor;
    for (int i = column; i < value_dim * columns; i += columns) {
      into.out[i] = into.out[i] * into_factor + from.out[i] * from_factor;
    }
  }
}

void finish(int value_dim, int columns, const Partial& partial, bf16* const* rows) {
  for (int column = 0; column < columns; ++column) {
    if (!rows[column]) continue;
    const float inverse = 1.0f / partial.sum[column];
    for (int i = 0; i < value_dim; ++i) rows[column][i] = round_to_bf16(partial.out[i * columns + column] * inverse);
  }
}

void enter() {}
void leave() {}

}  // namespace

const AttentionKernels kAttentionAvx2 = {enter, leave, pack_queries, pack_keys, pack_values, attend, merge, finish};

}  // namespace glimpse
