// A thread's part of a product: divides it into blocks that stay in the caches.
#pragma once

#include <algorithm>

#include "activations.h"
#include "adaptation.h"
#include "team.h"

namespace glimpse {

// Cache blocking of a product.
struct Blocking {
  int64_t rows;    // rows that are multiplied with all panels before the next rows
  int64_t panels;  // panels whose sums are computed together
  int64_t steps;   // steps of a panel that are multiplied with all rows before the next steps
};

constexpr int64_t kMostCachedRows = 512;      // see `Cached`
constexpr int64_t kFewBlocks = 4;             // blocks of matrix units whose sums stay in the L1 cache
constexpr int64_t kFewBlocksBytes = 5 << 18;  // bytes of their activations that stay in the L2 cache
constexpr int64_t kHalvedBlocks = 8;          // blocks of matrix units that prefetch in two halves
constexpr int64_t kCachedBytes = 16 << 10;    // bytes of a panel that stay in the L1 cache
constexpr int64_t kPanelBytes = 64 << 10;     // the same in the L2 cache, from where vector units are fed in time
constexpr int64_t kGroupedPanels = 8;         // panels whose sums are computed together if the inputs must be divided
constexpr int64_t kUnpackedBytes = 16 << 10;  // bytes of unpacked weights that stay in the L1 cache

// What stays in the L2 cache. One of less than 1 MiB (Zen before the fourth, Intel's cores for clients) would lose the
// activations of many rows before the next panel.
struct Cached {
  int64_t bytes;         // of activations, or of sums
  int64_t rows;          // up to this number of rows, weights are read once
  int64_t float_panels;  // panels whose sums are computed together if the inputs of vector units must be divided
};
const Cached& cached();

// Prefetch distance of weights that are read in order, for a number of rows; 0: none, `kWindowBytes`: by windows. It is
// a processor's own: prefetches keep some from following a panel by themselves, and others do not follow it from page
// to page, or not if much is computed meanwhile. tuning.py measures it.
int64_t streamed_ahead_bytes(int64_t rows);

// Whether vector units multiply many rows by integers that were widened in the cache; tuning.py measures it, too.
bool unpacks_for_vectors();

// Blocks of many rows begin with a group of activations.
static_assert(kCachedBytes / kStepBytes % kGroupSteps == 0 && kPanelBytes / kStepBytes % kGroupSteps == 0);

// Each thread reads consecutive panels: its share, or those of many rows that it takes.
class Multiplication {
 public:
  // `sums` and `unpacked` are this thread's.
  Multiplication(const Kernels& kernels, const Activations& x, const Weight& weight, const Adaptation& adaptation,
                 const Output& output, WorkQueue& queue, Buffer& sums, Buffer& unpacked)
      : kernels_(kernels), x_(x), weight_(weight), adaptation_(adaptation), queue_(queue),
        panels_(share(num_panels(weight))), unpack_(choose_unpacking()), together_(choose_together()),
        blocking_(choose_blocking(panels_.end - panels_.begin)), num_blocks_(blocking_.rows / x.block_rows()),
        whole_(blocking_.steps >= x.num_steps()), added_(adaptation ? std::max(num_sums(), blocking_.panels) : 0),
        sums_(reinterpret_cast<float*>(sums.reserve((added_ + num_sums()) * kSumsBytes))),
        unpacked_(unpack_ ? unpacked.reserve(together_ * blocking_.steps * part_step_bytes()) : nullptr),
        finishing_{weight, output, nullptr, nullptr, 0, 0, 0} {}

  void run() {
    if (kernels_.begin) kernels_.begin(x_.tile_rows(), x_.tile_row_bytes());
    const int64_t row_blocks = ceil_div(x_.rows(), blocking_.rows), width = num_panels(weight_);
    for (int64_t block = 0; !takes_panels() && block < row_blocks; ++block) multiply_with_rows_of(block);
    for (Range taken = take(row_blocks * width); taken.begin < taken.end; taken = take(row_blocks * width))
      for (int64_t block = taken.begin / width; block * width < taken.end; ++block) {
        panels_ = {std::max<int64_t>(taken.begin - block * width, 0), std::min(taken.end - block * width, width)};
        multiply_with_rows_of(block);
      }
    if (kernels_.end) kernels_.end();
  }

 private:
  // Whether threads take panels as they finish others. The memory, which bounds fewer rows, is read in order fastest;
  // matrix units finish one block while they multiply the next.
  bool takes_panels() const { return x_.rows() > kTileRows && !kernels_.matrix_units; }

  // The next of all blocks' panels; none if each thread has its share.
  Range take(int64_t count) { return takes_panels() ? queue_.take(count, blocking_.panels) : Range{0, 0}; }

  // Multiplies `panels_` with a block of `blocking_.rows` rows.
  void multiply_with_rows_of(int64_t block) {
    const Range rows{block * blocking_.rows, std::min((block + 1) * blocking_.rows, x_.rows())};
    for (int64_t panel = panels_.begin; panel < panels_.end; panel += blocking_.panels) {
      const Range group{panel, std::min(panel + blocking_.panels, panels_.end)};
      if (has_one_block()) multiply_one_block(group);
      else if (has_few_blocks()) multiply_few_blocks(panel);
      else multiply_many(rows, group);
    }
    kernels_.finish(finishing_);
  }

  // Vector units unpack integers of a few rows' panels in the time that memory takes.
  Unpack choose_unpacking() const {
    const bool in_vectors = x_.has_integers() && !x_.has_group_tiles();
    if (in_vectors && !unpacks_for_vectors()) return nullptr;
    const int64_t direct_rows = x_.has_group_tiles() ? 0 : in_vectors ? kTileRows : kernels_.direct_rows;
    return x_.rows() > direct_rows ? kernels_.unpacker(weight_) : nullptr;
  }

  // Panels that are multiplied together. Of bytes only with dot products, which leave registers for their sums.
  int64_t choose_together() const {
    const bool of_bytes = weight_.byte_inputs && kernels_.multiplies_bytes;
    const bool unpacks = unpack_ && (kernels_.multiplies_bytes || !is_int4(weight_));
    return kernels_.pairs_panels && (of_bytes || unpacks) && x_.rows() > kernels_.streamed_rows ? 2 : 1;
  }

  // Bytes of a part's step that rows are multiplied by.
  int64_t part_step_bytes() const { return step_bytes(weight_) * (unpack_ ? 2 : 1); }

  Blocking choose_blocking(int64_t num_panels) const {
    const int64_t block_rows = x_.block_rows();
    const int64_t rows = std::min(ceil_div(x_.rows(), block_rows) * block_rows, cached().rows);
    const bool fits = rows * x_.num_steps() * x_.step_bytes() <= cached().bytes;
    if (x_.has_group_tiles()) {
      const int64_t panels = fits ? 1 : std::min(kGroupedPanels, num_panels);
      return {rows, panels, std::max<int64_t>(1, kUnpackedBytes / part_step_bytes())};
    }
    if (x_.uses_matrix_units()) {
      if (has_few_blocks()) return {rows, 1, kCachedBytes / kStepBytes};
      if (fits) return {rows, num_panels, x_.num_steps()};
      return {rows, std::min(kGroupedPanels, num_panels), kCachedBytes / kStepBytes};
    }
    if (x_.rows() <= kernels_.streamed_rows) return {rows, num_panels, x_.num_steps()};
    if (!unpack_ || x_.has_integers()) return {rows, together_, std::max<int64_t>(1, kPanelBytes / part_step_bytes())};
    // Each group of panels reads all activations, from beyond the L2 cache if they do not fit.
    const int64_t panels = fits ? together_ : std::min(cached().float_panels, num_panels);
    return {rows, panels, kUnpackedBytes / part_step_bytes()};
  }

  // Whether each panel is read once, from memory.
  bool has_one_block() const {
    return x_.rows() <= std::min(x_.block_rows(), kernels_.streamed_rows) && whole_ && !unpack_;
  }

  // Whether matrix units multiply two to four blocks, which takes about as long as reading the weights from memory.
  bool has_few_blocks() const {
    return x_.uses_matrix_units() && !x_.has_group_tiles() && x_.rows() > x_.block_rows() &&
           x_.rows() <= std::min(kFewBlocks * x_.block_rows(), cached().rows) &&
           x_.rows() * x_.num_steps() * x_.step_bytes() <= kFewBlocksBytes;
  }

  int64_t num_sums() const {
    if (has_few_blocks()) return 2 * num_blocks_;
    return whole_ ? 2 : blocking_.panels * num_blocks_;
  }

  void multiply_one_block(Range panels) {
    // Memory is read in its order fastest: what adapters add to all panels, then those.
    parts_[0] = x_.block(0, x_.rows(), 0, x_.num_steps());
    const uint32_t added_rows = adaptation_ ? adaptation_.expand(Range{0, x_.rows()}, panels, sums_of(num_sums())) : 0;
    for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
      Block& block = blocks_[turn_ ^= 1][0];
      block = parts_[0];
      block.index = panel;
      block.panel = packed(panel, 0);
      block.sums = sums_of(turn_);
      const int64_t ahead_bytes = streamed_ahead_bytes(x_.rows());
      block.lines_ahead = ahead_bytes ? step_bytes(weight_) / 64 : 0;
      block.ahead = block.panel + ahead_bytes;
      block.ahead_in_windows = ahead_bytes == kWindowBytes;
      block.added = sums_of(num_sums()) + (panel - panels.begin) * x_.rows() * kPanelWidth;
      block.added_rows = added_rows;
      multiply_block(block);
      // Together, because an epilogue waits for one row after the other.
      for (int64_t i = 0; added_rows && i < x_.rows() * kPanelWidth; i += 16) __builtin_prefetch(block.added + i);
      begin_finishing(finishing_, &block, 1, block.num_steps);
    }
  }

  // Multiplies a part of a panel with all rows before the next part, so that it and all sums stay in the L1 cache, and
  // finishes the blocks of the panel before it meanwhile.
  void multiply_few_blocks(int64_t panel) {
    Block* blocks = blocks_[turn_ ^= 1];
    const int64_t parts = ceil_div(x_.num_steps(), blocking_.steps);
    for (int64_t part = 0; part < parts; ++part) {
      const Range steps{x_.num_steps() * part / parts, x_.num_steps() * (part + 1) / parts};
      for (int64_t index = 0; index < num_blocks_; ++index) {
        Block& block = blocks[index] = x_.block(index * x_.block_rows(), x_.rows(), steps.begin, steps.end);
        block.index = panel;
        block.panel = packed(panel, steps.begin);
        block.sums = sums_of(turn_ * num_blocks_ + index);
        prefetch(block, packed(panel, steps.end), index, num_blocks_);
        block.ahead_to_l2 = true;  // there is no room for it where the part, the sums and the activations are
      }
      kernels_.multiply_and_finish(blocks, num_blocks_, false, finishing_);
    }
    kernels_.finish(finishing_);
    for (int64_t index = 0; index < num_blocks_; ++index) adapt(blocks[index]);
    begin_finishing(finishing_, blocks, num_blocks_, num_blocks_ * x_.num_steps());
  }

  void multiply_many(Range rows, Range panels) {
    for (int64_t step = 0; step < x_.num_steps(); step += blocking_.steps) {
      Range steps{step, std::min(step + blocking_.steps, x_.num_steps())};
      for (int64_t row = rows.begin, index = 0; row < rows.end; row += x_.block_rows(), ++index)
        parts_[index] = x_.block(row, rows.end, steps.begin, steps.end);
      for (int64_t panel = panels.begin; panel < panels.end; panel += together_)
        multiply_panels(rows, steps, {panel, std::min(panel + together_, panels.end)});
    }
  }

  void multiply_panels(Range rows, Range steps, Range panels) {
    const int64_t num_blocks = ceil_div(rows.end - rows.begin, x_.block_rows()), width = panels.end - panels.begin;
    const int64_t bytes = (steps.end - steps.begin) * step_bytes(weight_);  // of a panel
    const char* weights = packed(panels.begin, steps.begin);
    const bool ends = whole_ || blocking_.panels > together_;  // the next panels come before the next steps
    const int64_t first_slot = (panels.begin - panels_.begin) % blocking_.panels / together_ * num_blocks_;
    Block* blocks = blocks_[turn_ ^= 1];
    for (int64_t panel = 0; unpack_ && panel < width; ++panel)
      unpack_(weights + panel * panel_bytes(weight_), bytes / kLineBytes, unpacked_ + panel * 2 * bytes);
    for (int64_t index = 0; index < num_blocks; ++index) {
      Block& block = blocks[index * width] = parts_[index];
      block.index = panels.begin;
      block.unpacked = unpack_;
      block.panel = unpack_ ? unpacked_ : weights;
      if (width > 1) block.second_panel = block.panel + (unpack_ ? 2 * bytes : panel_bytes(weight_));
      block.sums = sums_of(whole_ ? slot_ ^= 1 : first_slot + index);
      const int64_t panel = index % width;  // whose next part the block prefetches
      const char* next =
          ends ? packed(panels.begin + together_ + panel, steps.begin) : packed(panels.begin + panel, steps.end);
      prefetch(block, next, index / width, ceil_div(num_blocks, width));
      if (width > 1) blocks[index * width + 1] = second_of(block);
    }
    multiply_blocks(blocks, num_blocks, width, steps.end == x_.num_steps());
  }

  // The sums of the second of two panels that are multiplied together.
  static Block second_of(Block block) {
    block.index += 1;
    block.sums += kSumsBytes / 2 / static_cast<int64_t>(sizeof(float));
    return block;
  }

  // `width` blocks of the same rows, one after the other, are multiplied as the first of them.
  void multiply_blocks(Block* blocks, int64_t count, int64_t width, bool are_complete) {
    if (kernels_.multiply_and_finish && !adaptation_)
      return kernels_.multiply_and_finish(blocks, count, are_complete, finishing_);
    for (Block* block = blocks; block < blocks + count * width; block += width) {
      multiply_block(*block);
      if (!are_complete) continue;
      for (Block* each = block; each < block + width; ++each) adapt(*each);
      begin_finishing(finishing_, block, width, block->num_steps);
    }
  }

  // Together the blocks prefetch what is multiplied next. A few blocks do it as two streams: memory reads these faster
  // than one.
  void prefetch(Block& block, const char* next, int64_t index, int64_t num_blocks) const {
    const bool in_halves = x_.uses_matrix_units() && !x_.has_group_tiles() && num_blocks <= kHalvedBlocks;
    const int64_t lines = block.num_steps * step_bytes(weight_) / 64 / (in_halves ? 2 : 1);
    block.lines_ahead = ceil_div(lines, num_blocks * block.num_steps);
    block.ahead = next + index * block.num_steps * block.lines_ahead * 64;
    block.ahead_apart = in_halves ? lines * 64 : 0;
  }

  // The block before it is finished meanwhile, or before it.
  void multiply_block(const Block& block) {
    if (kernels_.multiply_and_finish) kernels_.multiply_and_finish(&block, 1, false, finishing_);
    kernels_.finish(finishing_);
    if (!kernels_.multiply_and_finish) kernels_.multiply(block, weight_);
  }

  const char* packed(int64_t panel, int64_t first_step) const {
    return static_cast<const char*>(weight_.panels) + panel * panel_bytes(weight_) + first_step * step_bytes(weight_);
  }

  float* sums_of(int64_t slot) const { return sums_ + slot * (kSumsBytes / static_cast<int64_t>(sizeof(float))); }

  void adapt(Block& block) const {
    if (!adaptation_) return;
    block.added = block.sums + (sums_of(num_sums()) - sums_);
    block.added_rows = adaptation_.expand({block.first_row, block.first_row + block.rows},
                                          {block.index, block.index + 1}, block.added);
  }

  const Kernels& kernels_;
  const Activations& x_;
  const Weight& weight_;
  const Adaptation& adaptation_;
  WorkQueue& queue_;
  Range panels_;      // this thread's
  Unpack unpack_;     // of parts of panels, before they are multiplied with all rows; null: none
  int64_t together_;  // panels that are multiplied together, 1 or 2
  Blocking blocking_;
  int64_t num_blocks_;  // blocks in blocking_.rows rows
  bool whole_;          // all steps are computed at once
  int64_t added_;       // places for what adapters add, after those for sums
  float* sums_;
  char* unpacked_;
  Finishing finishing_;
  Block parts_[kMostCachedRows / kTileRows];          // of some steps, for any panel: matrix units would wait for them
  Block blocks_[2][2 * kMostCachedRows / kTileRows];  // those being finished and those being multiplied, alternating
  int turn_ = 0, slot_ = 0;
};

}  // namespace glimpse
