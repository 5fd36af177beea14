// The epilogue of a product: scale, bias, what adapters add, activation and residual. Included after rows.h, in the
// same namespace.
#pragma once

// kLanes output features of a row: features `column` to `column + kLanes` of the panel.
static inline f32v scaled(const Block& block, const Weight& weight, uint64_t row, uint64_t column) {
  const int64_t place = row % kTileRows * 16 + row / kTileRows * 512 + column / 16 * 256 + column % 16;
  f32v sums = load<f32v>(block.sums + place);
  if (block.planes) {  // the sums are int32
    const int32_t* high = reinterpret_cast<const int32_t*>(block.sums) + row * 16 + column / 16 * 256 + column % 16;
    sums = multiply_add(__builtin_convertvector(load<i32v>(high), f32v), splat(128.0f),
                        __builtin_convertvector(load<i32v>(high + block.low_offset), f32v));
    sums *= block.planes[row].scale;
  }
  const int64_t feature = block.index * kPanelWidth + column;
  const f32v factor = weight.scale ? load<f32v>(weight.scale + feature) : splat(1.0f);
  sums = multiply_add(sums, factor, weight.bias ? load<f32v>(weight.bias + feature) : f32v{});
  return block.added_rows >> row & 1 ? sums + load<f32v>(block.added + row * kPanelWidth + column) : sums;
}

// 1 / s - 1, where the activation is x · s: s is a sigmoid.
static inline f32v exponential(f32v x, int32_t activation) {
  constexpr float kLog2E = 1.44269504088896341f;
  if (activation == kGatedSilu) return power_of_two(x * -kLog2E);
  if (activation == kQuickGelu) return power_of_two(1.702f * x * -kLog2E);
  // (1 + tanh(y)) / 2 is sigmoid(2 y).
  return power_of_two(1.5957691216057308f * (x + 0.044715f * x * x * x) * -kLog2E);
}

static inline f32v activated(f32v x, int32_t activation) {
  return activation == kIdentity ? x : x * reciprocal(1.0f + exponential(x, activation));
}

// Stores features of a row, at a place among those of all rows, with the residual.
static inline __attribute__((always_inline)) void store_in_rows(const Output& output, int64_t place, int64_t count,
                                                                f32v value) {
  if (output.residual) value += load_wide(output.residual + place, count);
  if (output.wide_residual) value += load_wide(output.wide_residual + place, count);
  if (output.wide) store_f32(output.wide + place, value, count);
  else store_bf16(output.narrow + place, value, count);
}

// Inlined, so that conditions are evaluated once outside a loop over rows.
static inline __attribute__((always_inline)) void finish_row(const Block& block, const Weight& weight,
                                                             const Output& output, int64_t row) {
  const int64_t panel = block.index, width = width_of(weight), out_row = block.first_row + row;
  if (weight.gated) {
    for (int i = 0; i < 16; i += kLanes) {
      const int64_t column = panel * 16 + i;
      f32v gate = scaled(block, weight, row, i), up = scaled(block, weight, row, i + 16);
      if (output.tiles) {
        Element* to = row_in_tiles(output.tiles, out_row, output.num_tiles);
        store_element(to + place_of(column), activated(gate, output.activation) * up);
      } else {  // the activation comes later: all gates, then all features
        store_in_rows(output, out_row * 2 * width + column, width - column, gate);
        store_in_rows(output, (out_row * 2 + 1) * width + column, width - column, up);
      }
    }
    return;
  }
  for (int i = 0; i < kPanelWidth; i += kLanes) {
    const int64_t column = panel * kPanelWidth + i;
    f32v value = activated(scaled(block, weight, row, i), output.activation);
    if (output.tiles) {
      store_element(row_in_tiles(output.tiles, out_row, output.num_tiles) + place_of(column), value);
      continue;
    }
    store_in_rows(output, out_row * width + column, width - column, value);
  }
}

static void finish_all(Finishing& finishing) {
  if (!finishing.block) return;
  // Copies: for all that the compiler knows, a stored result may change what they are copied from.
  const Weight weight = finishing.weight;
  const Output output = finishing.output;
  for (const Block* next = finishing.block; next != finishing.end; ++next, finishing.row = 0) {
    const Block block = *next;
    for (int64_t row = finishing.row; row < block.rows; ++row) finish_row(block, weight, output, row);
  }
  finishing.block = nullptr;
}
