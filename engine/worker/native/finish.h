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

static inline f32v activated(f32v x, int32_t activation) {
  if (activation == kGatedSilu) return x * sigmoid(x);
  if (activation == kQuickGelu) return x * sigmoid(1.702f * x);
  // (1 + tanh(y)) / 2 is sigmoid(2 y).
  if (activation == kGeluTanh || activation == kGatedGeluTanh)
    return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
  return x;
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

// Finishes rows while other blocks are multiplied: evenly over the steps, kBurst rows at a time. It has copies: for all
// that the compiler knows, a stored result may change what they are copied from.
template <int kBurst>
class RowFinisher {
 public:
  inline __attribute__((always_inline)) explicit RowFinisher(const Finishing* finishing) {
    if (!finishing || !finishing->block) return;
    weight_ = finishing->weight;
    output_ = finishing->output;
    next_ = finishing->block;
    end_ = finishing->end;
    block_ = *next_;
    row_ = finishing->row;
    pace_ = finishing->pace;
    due_ = finishing->due;
  }

  inline __attribute__((always_inline)) void end_step() {
    if (!next_) return;
    due_ += pace_;
    if (due_ < kBurst * kWholeRow) return;
    for (; due_ >= kWholeRow; due_ -= kWholeRow) {
      finish_row(block_, weight_, output_, row_);
      if (++row_ < block_.rows) continue;
      row_ = 0;
      if (++next_ == end_) {
        next_ = nullptr;
        return;
      }
      block_ = *next_;
    }
  }

  // Tells what is left.
  inline __attribute__((always_inline)) void end(Finishing& finishing) const {
    finishing.block = next_;
    finishing.row = row_;
    finishing.due = due_;
  }

 private:
  Weight weight_;
  Output output_;
  Block block_;
  const Block* next_ = nullptr;
  const Block* end_;
  int64_t row_ = 0, pace_ = 0, due_ = 0;
};

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
