// Normalizes rows of activations and lays them out in tiles. Included after vectors.h, in the same namespace.
//
// A tile has 16 rows of 32 inputs, bfloat16 where the processor multiplies it and float32 elsewhere; tiles of the same
// rows are consecutive. For int8 weights, a value may also be (128 · high + low) times the scale of its row, in two
// planes of int8 tiles of 64 inputs: 15 bits of precision, where bfloat16 has 8. For int4 weights, it is int8 times a
// scale for each row and group of inputs, in tiles of 32 inputs.
#pragma once

#if GLIMPSE_BF16
using Element = bf16;
static inline void store_element(Element* to, f32v value) { store(to, narrow(value)); }
static inline f32v load_element(const Element* from) { return load_bf16(from); }
#else
using Element = float;
static inline void store_element(Element* to, f32v value) { store(to, value); }
static inline f32v load_element(const Element* from) { return load<f32v>(from); }
#endif

constexpr int64_t kTileElements = kTileRows * kTileInputs;

static inline Element* row_in_tiles(void* tiles, int64_t row, int64_t num_tiles) {
  return static_cast<Element*>(tiles) + (row / kTileRows) * num_tiles * kTileElements + (row % kTileRows) * kTileInputs;
}

// The place of an input in a row of tiles.
static inline int64_t place_of(int64_t input) { return input / kTileInputs * kTileElements + input % kTileInputs; }

template <class T>
static inline f32v part(const T* x, int64_t i, int64_t count) {
  return load_wide(x + i, count - i);
}

// Writes one row [count] of bf16 or float to tiles, normalized if `norm` is not null.
template <class T>
static void lay_out_row(const T* x, int64_t count, const Norm* norm, void* tile_row, int64_t num_tiles) {
  float mean = 0, scale = 1;
  if (norm) {
    if (norm->centered) {
      f32v total{};
      for (int64_t i = 0; i < count; i += kLanes) total += part(x, i, count);
      mean = sum(total) / count;
    }
    f32v squares{};
    for (int64_t i = 0; i < count; i += kLanes) {
      f32v value = part(x, i, count) - mean;
      squares += value * value;
    }
    // Each padded zero adds mean² to the sum.
    float padding = static_cast<float>(ceil_div(count, kLanes) * kLanes - count);
    scale = 1.0f / __builtin_sqrtf((sum(squares) - padding * mean * mean) / count + norm->eps);
  }
  Element* to = static_cast<Element*>(tile_row);
  for (int64_t i = 0; i < num_tiles * kTileInputs; i += kLanes) {
    f32v value{};
    if (i < count) {
      value = part(x, i, count);
      if (norm) value = (value - mean) * scale * part(static_cast<const T*>(norm->weight), i, count);
      if (norm && norm->bias) value += part(static_cast<const T*>(norm->bias), i, count);
    }
    store_element(to + place_of(i), value);
  }
}

// Splits one row of tiles into the two int8 planes.
static PlanesRow split_row(const void* tile_row, int64_t num_steps, int8_t* high, int8_t* low) {
  const Element* row = static_cast<const Element*>(tile_row);
  f32v largest{};
  for (int64_t i = 0; i < num_steps * 64; i += kLanes) {
    f32v value = load_element(row + place_of(i));
    f32v size = value < 0.0f ? -value : value;
    largest = size > largest ? size : largest;
  }
  float limit = 1e-30f;
  for (int i = 0; i < kLanes; ++i) limit = largest[i] > limit ? largest[i] : limit;
  constexpr float kSteps = 127 * 128 + 63;
  constexpr float kRound = 12582912.0f;
  i32v high_sum{}, low_sum{};
  for (int64_t i = 0; i < num_steps * 64; i += kLanes) {
    f32v shifted = load_element(row + place_of(i)) * (kSteps / limit) + kRound;
    i32v whole = reinterpret_cast<i32v>(shifted) - reinterpret_cast<i32v>(splat(kRound));
    i32v upper = (whole + 64) >> 7, lower = whole - upper * 128;
    int64_t place = (i / 64) * kTileBytes + i % 64;
    store(high + place, __builtin_convertvector(upper, i8v));
    store(low + place, __builtin_convertvector(lower, i8v));
    high_sum += upper;
    low_sum += lower;
  }
  return {limit / kSteps, sum(high_sum), sum(low_sum)};
}

static void quantize_row(const void* tile_row, int64_t num_groups, int64_t group_size, int8_t* values,
                         GroupRow* groups) {
  const Element* row = static_cast<const Element*>(tile_row);
  constexpr float kRound = 12582912.0f;
  for (int64_t group = 0; group < num_groups; ++group) {
    const int64_t first = group * group_size;
    f32v largest{};
    for (int64_t i = first; i < first + group_size; i += kLanes) {
      f32v value = load_element(row + place_of(i));
      f32v size = value < 0.0f ? -value : value;
      largest = size > largest ? size : largest;
    }
    float limit = 1e-30f;
    for (int i = 0; i < kLanes; ++i) limit = largest[i] > limit ? largest[i] : limit;
    i32v total{};
    for (int64_t i = first; i < first + group_size; i += kLanes) {
      f32v shifted = load_element(row + place_of(i)) * (127.0f / limit) + kRound;
      i32v whole = reinterpret_cast<i32v>(shifted) - reinterpret_cast<i32v>(splat(kRound));
      store(values + place_of(i), __builtin_convertvector(whole, i8v));
      total += whole;
    }
    groups[group * kTileRows] = {limit / 127.0f, sum(total)};
  }
}
