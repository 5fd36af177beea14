// Products with packed weights and the fused operations that Python calls. Divides the work into blocks and over
// threads; the kernels compute a block.
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cpu.h"
#include "kernels.h"

namespace glimpse {
namespace {

constexpr int64_t kCacheBytes = 1 << 20;   // bytes of activations, or of sums, that stay in the L2 cache
constexpr int64_t kCachedRows = 512;       // up to this number of rows, weights are read once
constexpr int64_t kAheadBytes = 16 << 10;  // prefetch distance of weights
constexpr int64_t kCachedSteps = 8;        // steps of a panel: 16 KiB
constexpr int64_t kGroupedPanels = 8;      // panels whose sums are computed together if the inputs must be divided

const Kernels& kernels_of(int level) {
  return level == kAmx ? kAmxKernels : level == kAvx512Bf16 ? kAvx512Kernels : kAvx2Kernels;
}

// Memory that is reused from call to call, one buffer for each calling thread and purpose.
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

thread_local Buffer first_buffers[3], second_buffers[3], sums_buffer;

// The input of a product, in the layout that its kernel reads.
class Activations {
 public:
  Activations(const Kernels& kernels, const Weight& weight, int64_t rows, Buffer (&buffers)[3])
      : kernels_(kernels), rows_(rows), int8_(is_int8(weight)), planes_(int8_ && kernels.matrix_units),
        num_steps_(glimpse::num_steps(weight)), num_tiles_(int8_ ? 2 * num_steps_ : num_steps_) {
    int64_t row_tiles = ceil_div(rows, kTileRows);
    tiles_ = buffers[0].reserve(row_tiles * num_tiles_ * kTileBytes);
    if (!planes_) return;
    planes_data_ = buffers[1].reserve(2 * row_tiles * num_steps_ * kTileBytes);
    row_scale_ = reinterpret_cast<float*>(buffers[2].reserve(rows * sizeof(float)));
  }

  char* tiles() const { return tiles_; }
  int64_t num_tiles() const { return num_tiles_; }
  int64_t rows() const { return rows_; }
  int64_t block_rows() const { return kernels_.matrix_units && !planes_ ? 2 * kTileRows : kTileRows; }
  int64_t num_steps() const { return num_steps_; }
  // Bytes of a row's inputs in one step.
  int64_t step_bytes() const { return planes_ ? 128 : 64; }

  // Rows in each tile of activations: fewer than 16 if all rows fit into one.
  int64_t tile_rows() const { return std::min(kTileRows, stacked() ? 2 * rows_ : rows_); }

  void lay_out(int64_t row, const bf16* x, int64_t count, const Norm* norm) const {
    kernels_.lay_out_row(x + row * count, count, norm, tile_row(row), num_tiles_);
    if (planes_) split(row);
  }

  // Zeroes the tiles that a product with `width` outputs writes partly or not at all: padding must not be NaN.
  void clear_padding(int64_t row, int64_t width) const {
    for (int64_t tile = width / 32; tile < num_tiles_; ++tile) std::memset(tile_row(row) + tile * 512, 0, 64);
  }

  void split(int64_t row) const {
    char* high = planes_data_ + (row / kTileRows) * 2 * num_steps_ * kTileBytes + (row % kTileRows) * 64;
    char* low = stacked() ? high + rows_ * 64 : high + num_steps_ * kTileBytes;
    row_scale_[row] =
        kernels_.split_row(tile_row(row), num_steps_, reinterpret_cast<int8_t*>(high), reinterpret_cast<int8_t*>(low));
  }
  bool planes() const { return planes_; }

  Block block(int64_t first_row, int64_t end_row, int64_t first_step, int64_t end_step) const {
    Block block{};
    block.num_steps = end_step - first_step;
    block.adds = first_step > 0;
    block.first_row = first_row;
    block.rows = std::min(block_rows(), end_row - first_row);
    block.planes = planes_;
    if (planes_) {
      block.tiles = planes_data_ + (first_row / kTileRows) * 2 * num_steps_ * kTileBytes;
      block.second_tiles = stacked() ? nullptr : block.tiles + num_steps_ * kTileBytes;
      block.row_scale = row_scale_ + first_row;
      block.low_offset = stacked() ? rows_ * 16 : 512;
    } else {
      block.tiles = tiles_ + (first_row / kTileRows) * num_tiles_ * kTileBytes;
      block.second_tiles = block.rows > kTileRows ? block.tiles + num_tiles_ * kTileBytes : nullptr;
    }
    block.tiles += first_step * kTileBytes;
    if (block.second_tiles) block.second_tiles += first_step * kTileBytes;
    return block;
  }

 private:
  // Both planes of up to 8 rows fit into one tile.
  bool stacked() const { return planes_ && rows_ <= kTileRows / 2; }
  bf16* tile_row(int64_t row) const {
    return reinterpret_cast<bf16*>(tiles_ + (row / kTileRows) * num_tiles_ * kTileBytes + (row % kTileRows) * 64);
  }

  const Kernels& kernels_;
  int64_t rows_;
  bool int8_, planes_;
  int64_t num_steps_, num_tiles_;
  char* tiles_;
  char* planes_data_ = nullptr;
  float* row_scale_ = nullptr;
};

struct Range {
  int64_t begin, end;
};

// This thread's share of `count` items.
Range share(int64_t count) {
  int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
  return {count * thread / threads, count * (thread + 1) / threads};
}

// Cache blocking of a product: sums and inputs stay in the L2 cache, and the weights of `steps` steps of a panel in L1.
struct Blocking {
  int64_t rows;    // rows that are multiplied with all panels before the next rows
  int64_t panels;  // panels whose sums are computed together
  int64_t steps;   // steps of a panel that are multiplied with all rows before the next steps
};

Blocking choose_blocking(const Kernels& kernels, const Activations& x, int64_t num_panels) {
  int64_t rows = std::min(ceil_div(x.rows(), x.block_rows()) * x.block_rows(), kCachedRows);
  int64_t num_cuts = ceil_div(rows * x.num_steps() * x.step_bytes(), kCacheBytes);
  if (num_cuts == 1) return {rows, num_panels, x.num_steps()};
  if (!kernels.matrix_units) return {std::max(rows / num_cuts / 32 * 32, kPanelWidth), 1, x.num_steps()};
  return {rows, std::min(kGroupedPanels, num_panels), kCachedSteps};
}

// This thread's part of a product of activations and weights. Each thread reads consecutive panels.
class Multiplication {
 public:
  Multiplication(const Kernels& kernels, const Activations& x, const Weight& weight, const Output& output)
      : kernels_(kernels), x_(x), weight_(weight), panels_(share(num_panels(weight))),
        blocking_(choose_blocking(kernels, x, panels_.end - panels_.begin)),
        num_blocks_(blocking_.rows / x.block_rows()), whole_(blocking_.steps >= x.num_steps()),
        sums_(
            reinterpret_cast<float*>(sums_buffer.reserve((whole_ ? 2 : blocking_.panels * num_blocks_) * kSumsBytes))),
        finishing_{weight, output, nullptr, 0} {}

  void run() {
    if (kernels_.begin) kernels_.begin(x_.tile_rows());
    for (int64_t row = 0; row < x_.rows(); row += blocking_.rows) {
      Range rows{row, std::min(row + blocking_.rows, x_.rows())};
      for (int64_t panel = panels_.begin; panel < panels_.end; panel += blocking_.panels) {
        Range group{panel, std::min(panel + blocking_.panels, panels_.end)};
        if (is_few()) multiply_few(group);
        else multiply_many(rows, group);
      }
      kernels_.finish(finishing_);
    }
    if (kernels_.end) kernels_.end();
  }

 private:
  bool is_few() const { return x_.rows() <= x_.block_rows() && whole_; }

  void multiply_few(Range panels) {
    for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
      Block block = x_.block(0, x_.rows(), 0, x_.num_steps());
      set_panel(block, panel, 0);
      block.sums = sums_;
      block.lines_ahead = kStepBytes / 64;
      block.ahead = block.panel + kAheadBytes;
      kernels_.multiply(block, is_int8(weight_));
      begin_finishing(block);
      kernels_.finish(finishing_);
    }
  }

  void multiply_many(Range rows, Range panels) {
    for (int64_t step = 0; step < x_.num_steps(); step += blocking_.steps) {
      Range steps{step, std::min(step + blocking_.steps, x_.num_steps())};
      for (int64_t panel = panels.begin; panel < panels.end; ++panel) multiply_panel(rows, steps, panel);
    }
  }

  void multiply_panel(Range rows, Range steps, int64_t panel) {
    int64_t num_blocks = ceil_div(rows.end - rows.begin, x_.block_rows());
    for (int64_t index = 0; index < num_blocks; ++index) {
      Block& block = blocks_[turn_ ^= 1];
      block = x_.block(rows.begin + index * x_.block_rows(), rows.end, steps.begin, steps.end);
      set_panel(block, panel, steps.begin);
      int64_t slot = whole_ ? turn_ : (panel - panels_.begin) % blocking_.panels * num_blocks_ + index;
      block.sums = sums_ + slot * (kSumsBytes / sizeof(float));
      block.lines_ahead = ceil_div(kStepBytes / 64, num_blocks);  // together the blocks prefetch the next panel
      block.ahead = block.panel + panel_bytes(weight_) + index * block.num_steps * block.lines_ahead * 64;
      kernels_.multiply_and_finish(block, is_int8(weight_), finishing_);
      kernels_.finish(finishing_);
      if (steps.end == x_.num_steps()) begin_finishing(block);
    }
  }

  void set_panel(Block& block, int64_t panel, int64_t first_step) const {
    block.index = panel;
    block.panel = static_cast<const char*>(weight_.panels) + panel * panel_bytes(weight_) + first_step * kStepBytes;
  }

  void begin_finishing(const Block& block) {
    finishing_.block = &block;
    finishing_.row = 0;
  }

  const Kernels& kernels_;
  const Activations& x_;
  const Weight& weight_;
  Range panels_;
  Blocking blocking_;
  int64_t num_blocks_;  // blocks in blocking_.rows rows
  bool whole_;          // all steps are computed at once
  float* sums_;
  Finishing finishing_;
  Block blocks_[2];  // the one being finished and the one being multiplied, alternating
  int turn_ = 0;
};

void multiply(const Kernels& kernels, const Activations& x, const Weight& weight, const Output& output) {
  Multiplication(kernels, x, weight, output).run();
}

// This thread's rows of the input.
void lay_out(const Activations& x, const bf16* input, int64_t count, const Norm* norm) {
  Range rows = share(x.rows());
  for (int64_t row = rows.begin; row < rows.end; ++row) x.lay_out(row, input, count, norm);
}

}  // namespace
}  // namespace glimpse

using namespace glimpse;

// y = activation(norm(x) Wᵀ + b) + residual for x [rows, in_features]; y is float32 in `wide` or bfloat16 in `narrow`.
extern "C" void glimpse_linear(int level, const Weight* weight, const Norm* norm, const bf16* x, int64_t rows,
                               int32_t activation, const bf16* residual, float* wide, bf16* narrow) {
  if (rows == 0) return;
  const Kernels& kernels = kernels_of(level);
  Activations input(kernels, *weight, rows, first_buffers);
  Output output{nullptr, 0, wide, narrow, residual, activation};
#pragma omp parallel
  {
    lay_out(input, x, weight->in_features, norm);
#pragma omp barrier
    multiply(kernels, input, *weight, output);
  }
}

// y = second(activation(first(norm(x)))) + residual for x [rows, in_features of `first`].
extern "C" void glimpse_mlp(int level, const Weight* first, const Weight* second, const Norm* norm, const bf16* x,
                            int64_t rows, int32_t activation, const bf16* residual, bf16* y) {
  if (rows == 0) return;
  const Kernels& kernels = kernels_of(level);
  Activations input(kernels, *first, rows, first_buffers);
  Activations inner(kernels, *second, rows, second_buffers);
  Output to_inner{inner.tiles(), inner.num_tiles(), nullptr, nullptr, nullptr, activation};
  Output to_y{nullptr, 0, nullptr, y, residual, kIdentity};
#pragma omp parallel
  {
    Range own = share(rows);
    lay_out(input, x, first->in_features, norm);
    for (int64_t row = own.begin; row < own.end; ++row) inner.clear_padding(row, second->in_features);
#pragma omp barrier
    multiply(kernels, input, *first, to_inner);
#pragma omp barrier
    if (inner.planes()) {
      for (int64_t row = own.begin; row < own.end; ++row) inner.split(row);
#pragma omp barrier
    }
    multiply(kernels, inner, *second, to_y);
  }
}
