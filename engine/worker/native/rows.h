// Normalizes rows of activations and lays them out in tiles. Included after vectors.h, in the same namespace.
//
// A tile has 16 rows of 32 inputs, bfloat16 where the processor multiplies it and float32 elsewhere; tiles of the same
// rows are consecutive. For int8 weights, a value is an integer of 15 bits, where bfloat16 has 8, times the scale of
// its row and group of inputs; for matrix units, (128 · high + low) times the scale of its row, in two planes of int8
// tiles of 64 inputs. For int4 weights and others with byte inputs, it is int8 times a scale for each row and group of
// inputs, in tiles of 32 inputs. For matrix units and weights in groups, tiles of int8 have as many inputs as a group,
// at most 64; values of 15 bits are in two planes.
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

// The place of an input in a row of tiles. Numbers without a sign are divided by a shift alone.
static inline int64_t place_of(uint64_t input) { return input / kTileInputs * kTileElements + input % kTileInputs; }

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

// Consecutive inputs of a row of tiles; in another order if there is one.
template <bool kOrdered>
static inline f32v load_inputs(const Element* row, int64_t first, const int32_t* order) {
  if (!kOrdered) return load_element(row + place_of(first));
  Element inputs[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) inputs[lane] = row[place_of(order[first + lane])];
  return load_element(inputs);
}

// The largest magnitude of a part of a row of tiles; a tiny number if all are 0.
template <bool kOrdered = false>
static inline float largest_magnitude(const Element* row, int64_t first, int64_t end, const int32_t* order = nullptr) {
  f32v largest{};
  for (int64_t i = first; i < end; i += kLanes) {
    const f32v value = load_inputs<kOrdered>(row, i, order);
    const f32v size = reinterpret_cast<f32v>(reinterpret_cast<i32v>(value) & 0x7fffffff);
    largest = size > largest ? size : largest;
  }
  const float limit = maximum(largest);
  return limit > 1e-30f ? limit : 1e-30f;
}

// value · factor to nearest, ties to even, for magnitudes below 2^22.
static inline i32v round_to_integers(f32v value, float factor) {
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23
  return reinterpret_cast<i32v>(multiply_add(value, splat(factor), splat(kRound))) -
         reinterpret_cast<i32v>(splat(kRound));
}

// Stores integers of 8 bits, or the planes of 15.
template <bool kWide>
static inline void store_bytes(int8_t* place, int64_t low_offset, i32v whole) {
  store(place, __builtin_convertvector(kWide ? whole >> 7 : whole, i8v));
  if (kWide) store(place + low_offset, __builtin_convertvector(whole & 127, i8v));
}

// Stores integers in tiles for matrix units.
template <bool kWide>
static inline void store_in_tiles(const Groups& groups, int64_t input, i32v whole, void* values) {
  int8_t* place = static_cast<int8_t*>(values) + input / groups.tile_inputs * (kTileRows * groups.tile_inputs) +
                  input % groups.tile_inputs;
  store_bytes<kWide>(place, groups.low_offset, whole);
}

// Inputs of a row of a tile of bytes: what products of matrices read lies together.
constexpr int64_t kByteInputs = GLIMPSE_DOTS == 2 ? 8 : kTileInputs;

// Stores integers of 15 bits in tiles of 32 inputs: in 16 bits, inputs 0, 2, 1, 3 of each four, as weights of 8 bits
// are widened. For products of matrices of bytes, the upper plane of eight inputs before the lower one.
static inline void store_wide(void* values, int64_t input, i32v whole) {
  if (GLIMPSE_DOTS == 2)
    store_bytes<true>(static_cast<int8_t*>(values) + 2 * place_of(input / 8 * 8) + input % 8, 8, whole);
  else store(static_cast<int16_t*>(values) + place_of(input), __builtin_convertvector(swap_middle(whole), i16v));
}

template <bool kWide, bool kTiles, bool kOrdered>
static inline GroupRow quantize_group(const Element* row, int64_t first, int64_t end, const Groups& groups,
                                      void* values) {
  const float limit = largest_magnitude<kOrdered>(row, first, end, groups.order);
  const float most = static_cast<float>(groups.most), factor = most / limit;
  i32v total{};
  for (int64_t i = first; i < end; i += kLanes) {
    const i32v whole = round_to_integers(load_inputs<kOrdered>(row, i, groups.order), factor);
    if (kTiles) store_in_tiles<kWide>(groups, i, whole, values);
    else if (kWide) store_wide(values, i, whole);
    else {
      const uint64_t input = i;
      store_bytes<false>(
          static_cast<int8_t*>(values) + input / kByteInputs * (kTileRows * kByteInputs) + input % kByteInputs, 0,
          whole);
    }
    total += whole;
  }
  const float scale = limit / most;
  return {scale, -scale * static_cast<float>(sum(total))};
}

// A group of all rows before the next group: memory is read in its order fastest.
template <bool kWide, bool kTiles, bool kOrdered>
static void quantize_groups(const Element* tile_row, int64_t num_rows, const Groups groups, char* values,
                            GroupRow* rows) {
  for (int64_t first = 0; first < groups.num_inputs; first += groups.size, rows += kTileRows) {
    const int64_t end = first + groups.size < groups.num_inputs ? first + groups.size : groups.num_inputs;
    for (int64_t row = 0; row < num_rows; ++row)
      rows[row] = quantize_group<kWide, kTiles, kOrdered>(tile_row + row * kTileInputs, first, end, groups,
                                                          values + row * groups.row_bytes);
  }
}

template <bool kWide, bool kTiles>
static void quantize_in_order(const void* tile_row, int64_t num_rows, const Groups& groups, void* values,
                              GroupRow* rows) {
  const auto quantize = groups.order ? quantize_groups<kWide, kTiles, true> : quantize_groups<kWide, kTiles, false>;
  quantize(static_cast<const Element*>(tile_row), num_rows, groups, static_cast<char*>(values), rows);
}

static void quantize_rows(const void* tile_row, int64_t num_rows, const Groups& groups, void* values, GroupRow* rows) {
  const auto quantize = groups.wide
                            ? (groups.tile_inputs ? quantize_in_order<true, true> : quantize_in_order<true, false>)
                            : (groups.tile_inputs ? quantize_in_order<false, true> : quantize_in_order<false, false>);
  quantize(tile_row, num_rows, groups, values, rows);
}
