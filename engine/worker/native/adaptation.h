// What adapters add to a product: up · down · x, for the rows that have adapters.
#pragma once

#include <algorithm>

#include "activations.h"
#include "team.h"

namespace glimpse {

// What all adapters add to a linear. declarations.py reads its fields here.
struct LowRanks {
  const LowRank* adapters;  // by their slots; null: nothing
};

// Rows with adapters, sorted by row tiles and in these by adapters. declarations.py reads its fields here.
struct RowAdapters {
  const int64_t *rows, *slots;  // [count]: a row and the adapter of it
  int64_t count;
  int64_t most_ranks;  // of what any adapter adds to any linear
};

class Adaptation {
 public:
  // `inner`: the team's. `rows`, `added`: null: nothing is added.
  Adaptation(const Kernels& kernels, const Weight& weight, const LowRanks* added, const RowAdapters* rows,
             Buffer& inner)
      : kernels_(weight.dtype == kFloat32 ? kernels.low_rank_float : kernels.low_rank),
        element_bytes_(kernels.element_bytes), most_rows_(kernels.adapted_rows),
        num_tiles_(ceil_div(weight.in_features, kTileInputs)), num_panels_(num_panels(weight)),
        gated_(weight.gated != 0), rows_(rows), adapters_(rows && added ? added->adapters : nullptr) {
    if (!adapters_) return;
    inner_ = reserve(rows, inner);
    for_each_block(0, rows->count, [&](int64_t, int64_t, const LowRank& adapter) { num_parts_ += blocks_of(adapter); });
  }

  // Called before the parallel region, because the buffer may move.
  static char* reserve(const RowAdapters* rows, Buffer& inner) {
    const int64_t numbers = rows ? rows->count * rows->most_ranks : 0;
    return inner.reserve(numbers * static_cast<int64_t>(sizeof(float)));
  }

  // Whether anything is added: then all threads must have computed `shrink` before any of them calls `expand`.
  explicit operator bool() const { return num_parts_ > 0; }

  // Computes this thread's part of down · x.
  void shrink(const Activations& x, int64_t ahead_bytes) const {
    const Range own = share(num_parts_);
    int64_t first_part = 0;
    for_each_block(0, rows_->count, [&](int64_t first, int64_t count, const LowRank& adapter) {
      AdaptedBlock block = make_block(first, count);
      for (int64_t i = 0; i < count; ++i) block.x[i] = x.row(rows_->rows[first + i]);
      const int64_t parts = blocks_of(adapter);
      const int64_t begin = std::max<int64_t>(own.begin - first_part, 0), end = std::min(own.end - first_part, parts);
      if (begin < end) kernels_.shrink(block, adapter, num_tiles_, begin, end, ahead_bytes);
      first_part += parts;
    });
  }

  // Computes what is added to a block of rows, [panels][rows][32]. Returns the rows to which something is added, as
  // `Block::added_rows`. Panels a page apart would share few lines of the L1 cache.
  uint32_t expand(Range block_rows, Range panels, float* added) const {
    uint32_t added_rows = 0;
    const auto first_after = [&](int64_t row_tile) {  // of the rows in this row tile and later ones
      return std::partition_point(rows_->rows, rows_->rows + rows_->count,
                                  [&](int64_t row) { return row / kTileRows < row_tile; }) -
             rows_->rows;
    };
    const int64_t first = first_after(block_rows.begin / kTileRows);
    const int64_t end = first_after(ceil_div(block_rows.end, kTileRows));
    for_each_block(first, end, [&](int64_t first, int64_t count, const LowRank& adapter) {
      AdaptedBlock block = make_block(first, count);
      block.panel_numbers = (block_rows.end - block_rows.begin) * kPanelWidth;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = rows_->rows[first + i] - block_rows.begin;
        block.sums[i] = added + row * kPanelWidth;
        added_rows |= uint32_t{1} << row;
      }
      if (!gated_) return expand(block, adapter, {2 * panels.begin, 2 * panels.end}, 2);
      expand(block, adapter, panels, 1);
      for (int64_t i = 0; i < count; ++i) block.sums[i] += 16;  // the second half has the features of `up`
      expand(block, adapter, {panels.begin + num_panels_, panels.end + num_panels_}, 1);
    });
    return added_rows;
  }

 private:
  // Calls body(first, count, adapter) for a few rows at a time, of one row tile and of one adapter that adds something.
  template <class Body>
  void for_each_block(int64_t begin, int64_t end, const Body& body) const {
    for (int64_t first = begin; first < end;) {
      const int64_t slot = rows_->slots[first], tile = rows_->rows[first] / kTileRows;
      int64_t next = first + 1;
      while (next < end && next - first < most_rows_ && rows_->slots[next] == slot &&
             rows_->rows[next] / kTileRows == tile)
        ++next;
      if (adapters_[slot].num_parts) body(first, next - first, adapters_[slot]);
      first = next;
    }
  }

  // Computes column tiles, of which each panel has so many. Parts are in the order of their tiles.
  void expand(const AdaptedBlock& block, const LowRank& adapter, Range tiles, int64_t tiles_of_panel) const {
    int64_t next = tiles.begin;
    const auto expand_to = [&](const LowRankPart* part, int64_t end) {
      if (next < end) kernels_.expand(block, part, next, {next - tiles.begin, end - tiles.begin}, tiles_of_panel);
      next = std::max(next, end);
    };
    for (const LowRankPart* part = adapter.parts; part < adapter.parts + adapter.num_parts; ++part) {
      expand_to(nullptr, std::min(tiles.end, part->first_tile));
      expand_to(part, std::min(tiles.end, part->first_tile + part->num_tiles));
    }
    expand_to(nullptr, tiles.end);
  }

  static int64_t blocks_of(const LowRank& adapter) { return adapter.num_ranks / kBlockRanks; }

  AdaptedBlock make_block(int64_t first, int64_t count) const {
    AdaptedBlock block{};
    block.rows = count;
    block.inner = inner_ + first * rows_->most_ranks * element_bytes_;
    block.most_ranks = rows_->most_ranks;
    return block;
  }

  const LowRankKernels& kernels_;
  int64_t element_bytes_, most_rows_, num_tiles_, num_panels_;
  bool gated_;
  const RowAdapters* rows_;
  const LowRank* adapters_;
  char* inner_ = nullptr;
  int64_t num_parts_ = 0;  // of `shrink`
};

}  // namespace glimpse
