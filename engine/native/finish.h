// The epilogue of a product: scale, bias, activation and residual. Included after vectors.h, in the same namespace.
#pragma once

// One row of a block: 32 columns as two vectors.
struct Pair {
  f32x16 left, right;
};

static inline Pair scaled(const Block& block, const Weight& weight, int64_t panel, int64_t row) {
  const float* left = block.sums + row * 16 + (row / kTileRows) * 256;
  Pair sums{load<f32x16>(left), load<f32x16>(left + 256)};
  if (block.planes) {  // int8 planes: the sums are int32
    const int32_t* high = reinterpret_cast<const int32_t*>(block.sums) + row * 16;
    const int32_t* low = high + block.low_offset;
    sums.left = __builtin_convertvector(load<i32x16>(high), f32x16) * 128.0f +
                __builtin_convertvector(load<i32x16>(low), f32x16);
    sums.right = __builtin_convertvector(load<i32x16>(high + 256), f32x16) * 128.0f +
                 __builtin_convertvector(load<i32x16>(low + 256), f32x16);
    float scale = block.row_scale[row];
    sums.left *= scale;
    sums.right *= scale;
  }
  if (weight.scale) {
    sums.left *= load<f32x16>(weight.scale + panel * kPanelWidth);
    sums.right *= load<f32x16>(weight.scale + panel * kPanelWidth + 16);
  }
  if (weight.bias) {
    sums.left += load<f32x16>(weight.bias + panel * kPanelWidth);
    sums.right += load<f32x16>(weight.bias + panel * kPanelWidth + 16);
  }
  return sums;
}

static inline f32x16 activated(f32x16 x, int32_t activation) {
  return activation == kQuickGelu ? x * sigmoid(1.702f * x) : x;
}

// Inlined, so that conditions are evaluated once outside a loop over rows.
static inline __attribute__((always_inline)) void finish_row(const Block& block, const Weight& weight,
                                                             const Output& output, int64_t row) {
  int64_t panel = block.index, width = width_of(weight);
  Pair sums = scaled(block, weight, panel, row);
  int64_t out_row = block.first_row + row;
  if (weight.gated) {
    int64_t column = panel * 16;
    f32x16 value = sums.left * sigmoid(sums.left) * sums.right;
    store(row_in_tiles(output.tiles, out_row, output.num_tiles) + (column / 32) * (kTileBytes / 2) + column % 32,
          narrow(value));
    return;
  }
  int64_t column = panel * kPanelWidth;
  sums.left = activated(sums.left, output.activation);
  sums.right = activated(sums.right, output.activation);
  if (output.tiles) {
    bf16* to = row_in_tiles(output.tiles, out_row, output.num_tiles) + panel * (kTileBytes / 2);
    store(to, narrow(sums.left));
    store(to + 16, narrow(sums.right));
    return;
  }
  int64_t place = out_row * width + column, count = width - column;
  if (output.residual) {
    sums.left += load_bf16(output.residual + place, count);
    if (count > 16) sums.right += load_bf16(output.residual + place + 16, count - 16);
  }
  if (output.wide) {
    store_f32(output.wide + place, sums.left, count);
    if (count > 16) store_f32(output.wide + place + 16, sums.right, count - 16);
  } else {
    store_bf16(output.narrow + place, sums.left, count);
    if (count > 16) store_bf16(output.narrow + place + 16, sums.right, count - 16);
  }
}

// Finishes the next row of the block, if there is one.
static inline void finish_next(Finishing& finishing) {
  if (!finishing.block) return;
  finish_row(*finishing.block, finishing.weight, finishing.output, finishing.row);
  if (++finishing.row == finishing.block->rows) finishing.block = nullptr;
}

static void finish_all(Finishing& finishing) {
  if (!finishing.block) return;
  for (int64_t row = finishing.row; row < finishing.block->rows; ++row)
    finish_row(*finishing.block, finishing.weight, finishing.output, row);
  finishing.block = nullptr;
}
