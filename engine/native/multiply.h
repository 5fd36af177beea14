// Products of blocks without matrix units: weights are widened to float32 in registers. Included after vectors.h.
#pragma once

// Computes rows [first, first + kRows) of bfloat16 tiles times a panel of weights.
template <int kRows, bool kInt8>
static inline void multiply_rows(const Block& block, int64_t first) {
  f32x16 left[kRows]{}, right[kRows]{};
  const char* tiles = block.tiles + first * 64;
  constexpr int kInputs = kInt8 ? 4 : 2;  // per line of a tile
  for (int64_t line = 0; line < block.num_steps * 16; ++line) {
    const char* weights = block.panel + (line / 16) * kStepBytes + (line % 16) * 64;
    i32x16 a = load<i32x16>(weights), b = load<i32x16>(weights + kTileBytes);
    if (line % 16 == 0) {
      for (int64_t i = 0; i < block.lines_ahead; ++i)
        __builtin_prefetch(block.ahead + (line / 16) * kStepBytes + i * 64);
    }
    for (int place = 0; place < kInputs; ++place) {
      f32x16 wa, wb;
      if (kInt8) {
        wa = __builtin_convertvector((a << (24 - 8 * place)) >> 24, f32x16);
        wb = __builtin_convertvector((b << (24 - 8 * place)) >> 24, f32x16);
      } else {
        wa = reinterpret_cast<f32x16>(place ? a & static_cast<int32_t>(0xffff0000) : a << 16);
        wb = reinterpret_cast<f32x16>(place ? b & static_cast<int32_t>(0xffff0000) : b << 16);
      }
      int64_t input = line * kInputs + place;
      const bf16* column = reinterpret_cast<const bf16*>(tiles + (input / 32) * kTileBytes) + input % 32;
      for (int row = 0; row < kRows; ++row) {
        uint32_t bits = static_cast<uint32_t>(column[row * 32]) << 16;
        float x;
        __builtin_memcpy(&x, &bits, 4);
        left[row] += wa * x;
        right[row] += wb * x;
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    store(block.sums + (first + row) * 16, left[row]);
    store(block.sums + (first + row) * 16 + 256, right[row]);
  }
}

template <bool kInt8>
static void multiply_plain(const Block& block) {
  int64_t row = 0;
  for (; row + 4 <= block.rows; row += 4) multiply_rows<4, kInt8>(block, row);
  for (; row < block.rows; ++row) multiply_rows<1, kInt8>(block, row);
}
