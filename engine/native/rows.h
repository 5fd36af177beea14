// Normalizes rows of activations and lays them out in tiles. Included after vectors.h, in the same namespace.
//
// A tile has 16 rows and 32 bfloat16 inputs; tiles of the same rows are consecutive. For AMX int8, a value is
// (128 · high + low) times the scale of its row, in two planes of int8 tiles of 64 inputs: 15 bits of precision, where
// bfloat16 has 8.
#pragma once

static inline bf16* row_in_tiles(void* tiles, int64_t row, int64_t num_tiles) {
  return static_cast<bf16*>(tiles) + (row / kTileRows) * num_tiles * (kTileBytes / 2) + (row % kTileRows) * 32;
}

static inline f32x16 part(const bf16* x, int64_t i, int64_t count) { return load_bf16(x + i, count - i); }

// Writes one row [count] to tiles, normalized if `norm` is not null.
static void lay_out_row(const bf16* x, int64_t count, const Norm* norm, bf16* tile_row, int64_t num_tiles) {
  float mean = 0, scale = 1;
  if (norm) {
    if (norm->centered) {
      f32x16 total{};
      for (int64_t i = 0; i < count; i += 16) total += part(x, i, count);
      mean = sum(total) / count;
    }
    f32x16 squares{};
    for (int64_t i = 0; i < count; i += 16) {
      f32x16 value = part(x, i, count) - mean;
      squares += value * value;
    }
    float padding = static_cast<float>(ceil_div(count, 16) * 16 - count);  // each padded zero adds mean² to the sum
    scale = 1.0f / __builtin_sqrtf((sum(squares) - padding * mean * mean) / count + norm->eps);
  }
  for (int64_t i = 0; i < num_tiles * 32; i += 16) {
    f32x16 value{};
    if (i < count) {
      value = part(x, i, count);
      if (norm) value = (value - mean) * scale * part(norm->weight, i, count);
      if (norm && norm->bias) value += part(norm->bias, i, count);
    }
    store(tile_row + (i / 32) * (kTileBytes / 2) + i % 32, narrow(value));
  }
}

// Splits one row of bfloat16 tiles into the two int8 planes and returns its scale.
static float split_row(const bf16* tile_row, int64_t num_steps, int8_t* high, int8_t* low) {
  f32x16 largest{};
  for (int64_t i = 0; i < num_steps * 64; i += 16) {
    f32x16 value = load_bf16(tile_row + (i / 32) * (kTileBytes / 2) + i % 32);
    f32x16 size = value < 0.0f ? -value : value;
    largest = size > largest ? size : largest;
  }
  float limit = 1e-30f;
  for (int i = 0; i < 16; ++i) limit = largest[i] > limit ? largest[i] : limit;
  constexpr float kSteps = 127 * 128 + 63;
  constexpr float kRound = 12582912.0f;
  for (int64_t i = 0; i < num_steps * 64; i += 16) {
    f32x16 value = load_bf16(tile_row + (i / 32) * (kTileBytes / 2) + i % 32) * (kSteps / limit);
    i32x16 whole = reinterpret_cast<i32x16>(value + kRound) - reinterpret_cast<i32x16>(splat(kRound));
    i32x16 upper = (whole + 64) >> 7;
    typedef int8_t i8x16 __attribute__((vector_size(16)));
    int64_t place = (i / 64) * kTileBytes + i % 64;
    store(high + place, __builtin_convertvector(upper, i8x16));
    store(low + place, __builtin_convertvector(whole - upper * 128, i8x16));
  }
  return limit / kSteps;
}
