// The epilogue of products of tiles. Included after finish.h, in the same namespace.
#pragma once

alignas(64) constexpr float kZeros[kPanelWidth] = {};
alignas(64) constexpr float kOnes[kPanelWidth] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                                  1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

// Where results of a row go. The usual ways are compiled by themselves.
enum Way { kGatedToTiles, kToTiles, kToRows, kAnyWay };

// Of blocks that are finished, of this panel and those before it.
static inline Way way_of(const Finishing& finishing, int64_t panel) {
  const Weight& weight = finishing.weight;
  const Output& output = finishing.output;
  if (finishing.block)
    for (const Block* block = finishing.block; block != finishing.end; ++block)
      if (block->added_rows) return kAnyWay;
  if (output.tiles) return weight.gated ? kGatedToTiles : kToTiles;
  const bool is_whole = (panel + 1) * kPanelWidth <= weight.out_features;
  return output.narrow && !output.wide_residual && !weight.gated && is_whole ? kToRows : kAnyWay;
}

// Finishes rows while other blocks are multiplied: evenly over the steps, in parts of a few vector operations. More at
// once would keep the processor from seeing the next tiles in time. It has copies of what each part needs: for all that
// the compiler knows, a stored result may change what they are copied from.
template <Way kWay, bool kPlanes>
class RowFinisher {
 public:
  inline __attribute__((always_inline)) explicit RowFinisher(const Finishing& finishing)
      : finishing_(finishing), next_(finishing.block), end_(finishing.end), row_(finishing.row),
        pace_(finishing.pace * kParts), due_(finishing.due), activation_(finishing.output.activation),
        num_tiles_(finishing.output.num_tiles), out_features_(finishing.weight.out_features) {
    if (next_) begin_block();
  }

  // Finishes what is left, then this block.
  inline __attribute__((always_inline)) void begin(const Block& block) {
    while (next_) finish_part();
    next_ = &block;
    end_ = next_ + 1;
    pace_ = ceil_div(block.rows * kWholeRow, block.num_steps) * kParts;
    due_ = 0;
    begin_block();
  }

  inline __attribute__((always_inline)) void end_half_step() {
    if (!next_) return;
    due_ += pace_;
    for (; due_ >= 2 * kWholeRow && next_; due_ -= 2 * kWholeRow) finish_part();
  }

  // Tells what is left.
  inline __attribute__((always_inline)) void end(Finishing& finishing) {
    while (part_) finish_part();
    finishing.block = next_;
    finishing.end = end_;
    finishing.row = row_;
    finishing.pace = pace_ / kParts;
    finishing.due = due_;
  }

 private:
  static constexpr int kParts = kWay == kAnyWay ? 1 : kWay == kToTiles ? 4 : 2;  // of a row

  inline __attribute__((always_inline)) void begin_block() {
    const Weight& weight = finishing_.weight;
    const Output& output = finishing_.output;
    const Block& block = *next_;
    rows_ = block.rows;
    const int64_t feature = block.index * kPanelWidth;
    factors_ = weight.scale ? weight.scale + feature : kOnes;
    biases_ = weight.bias ? weight.bias + feature : kZeros;
    sums_ = block.sums + row_ / kTileRows * 512 + row_ % kTileRows * 16;
    planes_ = block.planes;
    low_offset_ = block.low_offset;
    const int64_t out_row = block.first_row + row_;
    if (kWay == kToRows) {
      narrow_ = output.narrow + out_row * out_features_ + feature;
      residual_ = output.residual ? output.residual + out_row * out_features_ + feature : nullptr;
    } else if (kWay != kAnyWay) {
      tiles_ = row_in_tiles(output.tiles, out_row, num_tiles_) + place_of(kWay == kToTiles ? feature : feature / 2);
    }
  }

  inline __attribute__((always_inline)) void finish_part() {
    if (kWay == kAnyWay) finish_row(*next_, finishing_.weight, finishing_.output, row_);
    else if (kWay == kToRows) finish_in_rows();
    else if (part_ % 2 == 0) begin_activation();
    else end_activation();
    if (++part_ < kParts) return;
    part_ = 0;
    if (++row_ < rows_) return next_row();
    row_ = 0;
    if (++next_ != end_) begin_block();
    else next_ = nullptr;
  }

  inline __attribute__((always_inline)) void next_row() {
    const bool is_next_tile = row_ % kTileRows == 0;
    sums_ += is_next_tile ? 512 - 15 * 16 : 16;
    if (kWay == kToRows) {
      narrow_ += out_features_;
      if (residual_) residual_ += out_features_;
    } else if (kWay != kAnyWay) {
      tiles_ += is_next_tile ? num_tiles_ * kTileElements - 15 * kTileInputs : kTileInputs;
    }
  }

  // As `scaled` does, for features of a column tile.
  inline __attribute__((always_inline)) f32v scaled_tile(int tile) const {
    f32v sums = load<f32v>(sums_ + tile * 256);
    if (kPlanes) {
      sums = multiply_add(__builtin_convertvector(reinterpret_cast<i32v>(sums), f32v), splat(128.0f),
                          __builtin_convertvector(load<i32v>(sums_ + tile * 256 + low_offset_), f32v));
      sums *= planes_[row_].scale;
    }
    return multiply_add(sums, load<f32v>(factors_ + 16 * tile), load<f32v>(biases_ + 16 * tile));
  }

  inline __attribute__((always_inline)) void finish_in_rows() const {
    f32v value = activated(scaled_tile(part_), activation_);
    if (residual_) value += load_bf16(residual_ + 16 * part_);
    store(narrow_ + 16 * part_, narrow(value));
  }

  inline __attribute__((always_inline)) void begin_activation() {
    value_ = scaled_tile(part_ / 2);
    if (activation_ != kIdentity) exponential_ = exponential(value_, activation_);
  }

  inline __attribute__((always_inline)) void end_activation() const {
    f32v value = activation_ == kIdentity ? value_ : value_ * reciprocal(1.0f + exponential_);
    if (kWay == kGatedToTiles) value *= scaled_tile(1);
    store_element(tiles_ + part_ / 2 * 16, value);
  }

  const Finishing& finishing_;
  const Block* next_;
  const Block* end_;
  int64_t row_, pace_, due_;
  int32_t activation_;
  int64_t num_tiles_, out_features_;
  int part_ = 0;
  f32v value_, exponential_;  // between two parts
  // Of the block; places of the row.
  int64_t rows_, low_offset_;
  const float* factors_;
  const float* biases_;
  const float* sums_;
  const PlanesRow* planes_;
  bf16* narrow_;
  const bf16* residual_;
  Element* tiles_;
};
