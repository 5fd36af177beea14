// The resampling passes, based on `resample_block`, which the including file defines for its instruction set.
// Included inside an anonymous namespace of that file, so that each instruction set has its own copy.
#pragma once

typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));

template <class Vector>
static inline Vector load(const uint8_t* from) {
  Vector value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class Vector>
static inline void store(uint8_t* to, Vector value) {
  __builtin_memcpy(to, &value, sizeof value);
}

// Elements of two vectors, or of one that is named twice. GCC 11 does not know clang's function.
#if defined(__clang__)
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, decltype(a){__VA_ARGS__})
#endif

// Transposes four pixels of each of four rows.
static inline void transpose(u32x4 (&x)[4]) {
  u32x4 x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];
  u32x4 a = SHUFFLED(x0, x1, 0, 4, 1, 5), b = SHUFFLED(x2, x3, 0, 4, 1, 5);
  u32x4 c = SHUFFLED(x0, x1, 2, 6, 3, 7), d = SHUFFLED(x2, x3, 2, 6, 3, 7);
  x[0] = SHUFFLED(a, b, 0, 1, 4, 5);
  x[1] = SHUFFLED(a, b, 2, 3, 6, 7);
  x[2] = SHUFFLED(c, d, 0, 1, 4, 5);
  x[3] = SHUFFLED(c, d, 2, 3, 6, 7);
}

template <int kPixelBytes>
static inline u32x4 four_pixels(const uint8_t* from) {  // reads 16 bytes
  if (kPixelBytes == 4) return load<u32x4>(from);
  u8x16 bytes = load<u8x16>(from);
  return reinterpret_cast<u32x4>(SHUFFLED(bytes, bytes, 0, 1, 2, 15, 3, 4, 5, 15, 6, 7, 8, 15, 9, 10, 11, 15));
}

template <int kPixelBytes>
static void to_tile(const uint8_t* const* rows, int64_t width, uint8_t* tile) {
  int64_t x = 0;
  for (; x * kPixelBytes + 16 <= width * kPixelBytes; x += 4)
    for (int64_t y = 0; y < kTileRows; y += 4) {
      u32x4 pixels[4];
      for (int i = 0; i < 4; ++i) pixels[i] = four_pixels<kPixelBytes>(rows[y + i] + x * kPixelBytes);
      transpose(pixels);
      for (int i = 0; i < 4; ++i) store(tile + (x + i) * kBlockBytes + y * 4, pixels[i]);
    }
  for (; x < width; ++x)
    for (int64_t y = 0; y < kTileRows; ++y)
      __builtin_memcpy(tile + x * kBlockBytes + y * 4, rows[y] + x * kPixelBytes, kPixelBytes);
}

static void to_tile(const uint8_t* const* rows, int64_t width, int64_t pixel_bytes, uint8_t* tile) {
  pixel_bytes == 4 ? to_tile<4>(rows, width, tile) : to_tile<3>(rows, width, tile);
}

static void to_rows(const uint8_t* tile, int64_t width, uint8_t* rows, int64_t row_bytes) {
  for (int64_t x = 0; x < width; x += 4)
    for (int64_t y = 0; y < kTileRows; y += 4) {
      u32x4 pixels[4];
      for (int i = 0; i < 4; ++i) pixels[i] = load<u32x4>(tile + (x + i) * kBlockBytes + y * 4);
      transpose(pixels);
      for (int i = 0; i < 4; ++i) {
        u8x16 bytes = reinterpret_cast<u8x16>(pixels[i]);
        store(rows + (y + i) * row_bytes + x * 3,
              SHUFFLED(bytes, bytes, 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15));
      }
    }
}

static void resample_columns(const uint8_t* tile, const Window* windows, int64_t count, uint8_t* resized) {
  for (int64_t i = 0; i < count; ++i)
    resample_block(tile + windows[i].first * kBlockBytes, kBlockBytes, windows[i], resized + i * kBlockBytes);
}

static void resample_rows(const uint8_t* rows, int64_t row_bytes, const Window& window, uint8_t* row) {
  for (int64_t x = 0; x < row_bytes; x += kBlockBytes)
    resample_block(rows + window.first * row_bytes + x, row_bytes, window, row + x);
}
