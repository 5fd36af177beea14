// The input of a product, in the layout that its kernel reads, and the memory for it.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

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

// Rows of inputs in tiles; for int8 weights perhaps in two int8 planes, which `split` makes of the tiles.
class Activations {
 public:
  Activations(const Kernels& kernels, const Weight& weight, int64_t rows, Buffer (&buffers)[3])
      : kernels_(kernels), rows_(rows), planes_(is_int8(weight) && kernels.int8_planes),
        num_steps_(glimpse::num_steps(weight)), tiles_of_step_(inputs_of_step(weight) / kTileInputs),
        tile_bytes_(kTileRows * kTileInputs * kernels.element_bytes) {
    int64_t row_tiles = ceil_div(rows, kTileRows);
    tiles_ = buffers[0].reserve(row_tiles * num_tiles() * tile_bytes_);
    if (!planes_) return;
    planes_data_ = buffers[1].reserve(2 * row_tiles * num_steps_ * kTileBytes);
    planes_rows_ = reinterpret_cast<PlanesRow*>(buffers[2].reserve(rows * sizeof(PlanesRow)));
  }

  char* tiles() const { return tiles_; }
  int64_t num_tiles() const { return num_steps_ * tiles_of_step_; }
  int64_t tiles_of_step() const { return planes_ ? 1 : tiles_of_step_; }
  int64_t rows() const { return rows_; }
  int64_t block_rows() const { return kernels_.matrix_units && !planes_ ? 2 * kTileRows : kTileRows; }
  int64_t num_steps() const { return num_steps_; }
  bool planes() const { return planes_; }
  // Bytes of a row's inputs in one step.
  int64_t step_bytes() const { return planes_ ? 128 : tiles_of_step_ * tile_bytes_ / kTileRows; }

  // Rows in each tile of activations: fewer than 16 if all rows fit into one.
  int64_t tile_rows() const { return std::min(kTileRows, stacked() ? 2 * rows_ : rows_); }

  void lay_out(int64_t row, const bf16* x, int64_t count, const Norm* norm) const {
    kernels_.lay_out_row(x + row * count, count, norm, tile_row(row), num_tiles());
    if (planes_) split(row);
  }

  // Zeroes the tiles that a product with `width` outputs writes partly or not at all: padding must not be NaN.
  void clear_padding(int64_t row, int64_t width) const {
    for (int64_t tile = width / kTileInputs; tile < num_tiles(); ++tile)
      std::memset(tile_row(row) + tile * tile_bytes_, 0, tile_bytes_ / kTileRows);
  }

  void split(int64_t row) const {
    char* high = planes_data_ + (row / kTileRows) * 2 * num_steps_ * kTileBytes + (row % kTileRows) * 64;
    char* low = stacked() ? high + rows_ * 64 : high + num_steps_ * kTileBytes;
    planes_rows_[row] =
        kernels_.split_row(tile_row(row), num_steps_, reinterpret_cast<int8_t*>(high), reinterpret_cast<int8_t*>(low));
  }

  Block block(int64_t first_row, int64_t end_row, int64_t first_step, int64_t end_step) const {
    Block block{};
    block.num_steps = end_step - first_step;
    block.adds = first_step > 0;
    block.first_row = first_row;
    block.rows = std::min(block_rows(), end_row - first_row);
    const int64_t row_tile = first_row / kTileRows;
    if (planes_) {
      block.tiles = planes_data_ + row_tile * 2 * num_steps_ * kTileBytes + first_step * kTileBytes;
      block.second_tiles = stacked() ? nullptr : block.tiles + num_steps_ * kTileBytes;
      block.planes = planes_rows_ + first_row;
      block.low_offset = stacked() ? rows_ * 16 : 512;
    } else {
      const int64_t row_bytes = num_tiles() * tile_bytes_;
      block.tiles = tiles_ + row_tile * row_bytes + first_step * tiles_of_step_ * tile_bytes_;
      block.second_tiles = block.rows > kTileRows ? block.tiles + row_bytes : nullptr;
    }
    return block;
  }

 private:
  // Both planes of up to 8 rows fit into one tile of a matrix unit.
  bool stacked() const { return planes_ && kernels_.matrix_units && rows_ <= kTileRows / 2; }
  char* tile_row(int64_t row) const {
    return tiles_ + (row / kTileRows) * num_tiles() * tile_bytes_ + (row % kTileRows) * (tile_bytes_ / kTileRows);
  }

  const Kernels& kernels_;
  int64_t rows_;
  bool planes_;
  int64_t num_steps_, tiles_of_step_, tile_bytes_;
  char* tiles_;
  char* planes_data_ = nullptr;
  PlanesRow* planes_rows_ = nullptr;
};

}  // namespace glimpse
