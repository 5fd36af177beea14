// The input of a product, in the layout that its kernel reads, and the memory for it.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>

#include "kernels.h"

namespace glimpse {

// Memory that is reused from call to call.
class Buffer {
 public:
  char* reserve(int64_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = ceil_div(bytes, 1 << 16) << 16;
      data_ = static_cast<char*>(std::aligned_alloc(4096, size_));
      if (!data_) throw std::bad_alloc();
    }
    return data_;
  }
  ~Buffer() { std::free(data_); }

 private:
  char* data_ = nullptr;
  int64_t size_ = 0;
};

// Up to this number of rows, vector units multiply weights in groups where there are matrix units, too.
constexpr int64_t kVectorRows = 8;

// Rows of inputs in tiles, and for some weights in integers that are made of the tiles.
class Activations {
 public:
  Activations(const Kernels& kernels, const Weight& weight, int64_t rows, Buffer (&buffers)[3])
      : kernels_(kernels), layout_(choose_layout(kernels, weight, rows)), dtype_(weight.dtype), rows_(rows),
        num_steps_(glimpse::num_steps(weight)), inputs_of_step_(inputs_of_step(weight)),
        tile_bytes_(kTileRows * kTileInputs * kernels.element_bytes), group_steps_(is_int8(weight) ? kGroupSteps : 1),
        most_(has_byte_inputs(weight) ? 127 : 16383), order_(weight.input_order),
        integer_inputs_(choose_integer_inputs(weight)) {
    const int64_t row_tiles = ceil_div(rows, kTileRows);
    tiles_ = buffers[0].reserve(row_tiles * num_tiles() * tile_bytes_);
    if (layout_ == Layout::kTiles) return;
    integers_ = buffers[1].reserve(row_tiles * integer_tiles_bytes());
    const int64_t padded_rows = row_tiles * kTileRows;
    if (layout_ == Layout::kPlanes)
      planes_ = reinterpret_cast<PlanesRow*>(buffers[2].reserve(rows * sizeof(PlanesRow)));
    else groups_ = reinterpret_cast<GroupRow*>(buffers[2].reserve(padded_rows * num_groups() * sizeof(GroupRow)));
  }

  char* tiles() const { return tiles_; }
  const void* row(int64_t row) const { return tile_row(row); }
  int64_t num_tiles() const { return ceil_div(num_steps_ * inputs_of_step_, kTileInputs); }
  int64_t rows() const { return rows_; }
  int64_t num_steps() const { return num_steps_; }
  int64_t tiles_of_step() const { return inputs_of_step_ / kTileInputs; }  // not of integers
  int64_t block_rows() const {
    const bool has_one_plane = layout_ == Layout::kTiles || layout_ == Layout::kGroupTiles;
    return kernels_.matrix_units && has_one_plane ? 2 * kTileRows : kTileRows;
  }
  bool has_integers() const { return layout_ != Layout::kTiles; }
  bool has_group_tiles() const { return layout_ == Layout::kGroupTiles || layout_ == Layout::kGroupPlanes; }
  bool uses_matrix_units() const {
    return kernels_.matrix_units && layout_ != Layout::kGroups && layout_ != Layout::kWideGroups;
  }

  // Bytes of a row's inputs in one step.
  int64_t step_bytes() const {
    return has_integers() ? integer_tiles_bytes() / num_steps_ / kTileRows : tiles_of_step() * tile_bytes_ / kTileRows;
  }

  // Rows in each tile of activations: fewer than 16 if all rows fit into one.
  int64_t tile_rows() const { return std::min(kTileRows, stacked() ? 2 * rows_ : rows_); }

  // Bytes of a row of each tile for matrix units.
  int64_t tile_row_bytes() const { return has_group_tiles() ? integer_inputs_ : 64; }

  // Lays out row `source` of x, [rows, count] of the weight's type of activations, as row `row`.
  void lay_out(int64_t row, int64_t source, const void* x, int64_t count, const Norm* norm) const {
    const int64_t first = source * count;
    if (dtype_ == kFloat32)
      kernels_.lay_out_float_row(static_cast<const float*>(x) + first, count, norm, tile_row(row), num_tiles());
    else kernels_.lay_out_row(static_cast<const bf16*>(x) + first, count, norm, tile_row(row), num_tiles());
    if (has_integers()) make_integers({row, row + 1});
  }

  // Zeroes the tiles that a product with `width` outputs writes partly or not at all: padding must not be NaN.
  void clear_padding(int64_t row, int64_t width) const {
    for (int64_t tile = width / kTileInputs; tile < num_tiles(); ++tile)
      std::memset(tile_row(row) + tile * tile_bytes_, 0, tile_bytes_ / kTileRows);
  }

  void make_integers(Range rows) const {
    for (int64_t row = rows.begin, end; row < rows.end; row = end) {
      end = layout_ == Layout::kPlanes ? row + 1 : std::min(rows.end, (row / kTileRows + 1) * kTileRows);
      if (layout_ == Layout::kPlanes) split(row);
      else quantize({row, end});
    }
  }

  Block block(int64_t first_row, int64_t end_row, int64_t first_step, int64_t end_step) const {
    Block block{};
    block.num_steps = end_step - first_step;
    block.first_step = first_step;
    block.adds = first_step > 0;
    block.first_row = first_row;
    block.rows = std::min(block_rows(), end_row - first_row);
    const int64_t row_tile = first_row / kTileRows;
    switch (layout_) {
      case Layout::kPlanes:
        block.tiles = integers_ + row_tile * integer_tiles_bytes() + first_step * kTileBytes;
        block.second_tiles = stacked() ? nullptr : block.tiles + num_steps_ * kTileBytes;
        block.planes = planes_ + first_row;
        block.low_offset = stacked() ? rows_ * 16 : 512;
        break;
      case Layout::kGroups:
      case Layout::kWideGroups:
        block.tiles = integers_ + row_tile * integer_tiles_bytes() +
                      first_step * inputs_of_step_ / kTileInputs * kTileRows * kTileInputs * integer_bytes();
        block.groups = groups_ + (row_tile * num_groups() + first_step / group_steps_) * kTileRows;
        break;
      case Layout::kGroupTiles:
      case Layout::kGroupPlanes: {
        const bool is_wide = layout_ == Layout::kGroupPlanes;
        block.tiles = integers_ + row_tile * integer_tiles_bytes() + first_step * inputs_of_step_ * kTileRows;
        block.groups = groups_ + (row_tile * num_groups() + first_step) * kTileRows;
        block.tile_inputs = integer_inputs_;
        if (is_wide) block.second_tiles = block.tiles + plane_bytes();
        if (is_wide || block.rows <= kTileRows) break;
        block.second_tiles = block.tiles + integer_tiles_bytes();
        block.second_groups = block.groups + num_groups() * kTileRows;
        break;
      }
      case Layout::kTiles: {
        const int64_t row_bytes = num_tiles() * tile_bytes_;
        block.tiles = tiles_ + row_tile * row_bytes + first_step * tiles_of_step() * tile_bytes_;
        block.second_tiles = block.rows > kTileRows ? block.tiles + row_bytes : nullptr;
        break;
      }
    }
    return block;
  }

 private:
  enum class Layout {
    kTiles,        // bfloat16 or float32
    kPlanes,       // two planes of int8 tiles of 64 inputs
    kGroups,       // int8 tiles of 32 inputs, with a scale for each group
    kWideGroups,   // the same in int16, of 15 bits or of 8
    kGroupTiles,   // int8 tiles for matrix units, with a scale for each group
    kGroupPlanes,  // the same in two planes
  };

  static Layout choose_layout(const Kernels& kernels, const Weight& weight, int64_t rows) {
    if (has_groups(weight) && kernels.matrix_units && rows > kVectorRows)
      return has_byte_inputs(weight) ? Layout::kGroupTiles : Layout::kGroupPlanes;
    if (has_groups(weight)) {
      const bool in_bytes = is_int4(weight) || (weight.byte_inputs && kernels.multiplies_bytes);
      return in_bytes ? Layout::kGroups : Layout::kWideGroups;
    }
    if (!is_int8(weight)) return Layout::kTiles;
    return kernels.matrix_units ? Layout::kPlanes : Layout::kWideGroups;
  }

  void split(int64_t row) const {
    char* tiles = integers_ + row / kTileRows * integer_tiles_bytes();
    int8_t* high = reinterpret_cast<int8_t*>(tiles) + row % kTileRows * 64;
    int8_t* low = stacked() ? high + rows_ * 64 : high + num_steps_ * kTileBytes;
    planes_[row] = kernels_.split_row(tile_row(row), num_steps_, high, low);
  }

  // Quantizes rows of one row of tiles.
  void quantize(Range rows) const {
    const int64_t row_tile = rows.begin / kTileRows, place = rows.begin % kTileRows;
    const bool is_wide = layout_ == Layout::kWideGroups || layout_ == Layout::kGroupPlanes;
    const Groups groups{num_tiles() * kTileInputs,
                        group_steps_ * inputs_of_step_,
                        most_,
                        is_wide,
                        order_,
                        has_group_tiles() ? integer_inputs_ : 0,
                        plane_bytes(),
                        has_group_tiles() ? integer_inputs_
                        : is_wide         ? 2 * kTileInputs
                                          : kernels_.byte_inputs};
    kernels_.quantize_rows(tile_row(rows.begin), rows.end - rows.begin, groups,
                           integers_ + row_tile * integer_tiles_bytes() + place * groups.row_bytes,
                           groups_ + row_tile * num_groups() * kTileRows + place);
  }

  // The most inputs, up to 64, that divide a group.
  static int64_t choose_integer_inputs(const Weight& weight) {
    return has_groups(weight) ? std::gcd<int64_t, int64_t>(weight.group_size, 64) : 64;
  }

  // A plane of integers in groups of a row of tiles.
  int64_t plane_bytes() const { return num_tiles() * kTileRows * kTileInputs; }

  // Integers of a row of tiles.
  int64_t integer_tiles_bytes() const {
    if (layout_ == Layout::kPlanes) return 2 * num_steps_ * kTileBytes;
    if (layout_ == Layout::kGroupPlanes) return 2 * plane_bytes();
    return num_tiles() * kTileRows * kTileInputs * integer_bytes();
  }
  int64_t integer_bytes() const { return layout_ == Layout::kWideGroups ? 2 : 1; }

  // Groups of activations of a row.
  int64_t num_groups() const { return ceil_div(num_steps_, group_steps_); }

  // Both planes of up to 8 rows fit into one tile of a matrix unit.
  bool stacked() const { return layout_ == Layout::kPlanes && kernels_.matrix_units && rows_ <= kTileRows / 2; }
  char* tile_row(int64_t row) const {
    return tiles_ + (row / kTileRows) * num_tiles() * tile_bytes_ + (row % kTileRows) * (tile_bytes_ / kTileRows);
  }

  const Kernels& kernels_;
  Layout layout_;
  DType dtype_;
  int64_t rows_, num_steps_, inputs_of_step_, tile_bytes_;
  int64_t group_steps_;     // steps of a group of activations
  int32_t most_;            // of an integer in groups
  const int32_t* order_;    // of the inputs in groups; null: as they are
  int64_t integer_inputs_;  // of a row of a tile for matrix units
  char* tiles_;
  char* integers_ = nullptr;
  PlanesRow* planes_ = nullptr;
  GroupRow* groups_ = nullptr;  // [row tiles][groups][16]
};

}  // namespace glimpse
