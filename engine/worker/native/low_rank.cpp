// What adapters add to linears, and the activation of gates that they changed.
#include "linear.h"
#include "multiplication.h"

namespace glimpse {

namespace {

Activations input_of(const Kernels& kernels, const Adaptation& adaptation, TeamBuffers& buffers) {
  Weight shape{};
  shape.in_features = adaptation.added->in_features;
  shape.dtype = adaptation.added->dtype;
  return {kernels, shape, adaptation.num_rows, buffers.input};
}

float* inner_of(const Adaptation& adaptation, TeamBuffers& buffers) {
  const int64_t numbers = adaptation.num_rows * adaptation.added->most_ranks;
  return reinterpret_cast<float*>(buffers.inner[0].reserve(numbers * static_cast<int64_t>(sizeof(float))));
}

// Calls body(block, adapter) for the rows of each adapter, a few at a time.
template <class Body>
void for_each_block(const Kernels& kernels, const Adaptation& adaptation, const Activations& x, float* inner,
                    const Body& body) {
  const LowRanks& added = *adaptation.added;
  const int64_t bytes = added.out_features * (added.dtype == kFloat32 ? 4 : 2);
  for (int64_t first = 0; first < adaptation.num_rows;) {
    const int64_t slot = adaptation.slots[first];
    const LowRank& adapter = added.adapters[slot];
    LowRankBlock block{};
    block.num_tiles = x.num_tiles();
    block.inner = inner + first * added.most_ranks;
    block.num_ranks = adapter.num_ranks;
    for (; first < adaptation.num_rows && adaptation.slots[first] == slot; ++first) {
      if (block.rows == kernels.adapted_rows) break;
      block.x[block.rows] = x.row(first);
      block.y[block.rows++] = static_cast<char*>(adaptation.y) + adaptation.rows[first] * bytes;
    }
    if (adapter.num_parts) body(block, adapter);
  }
}

Adapt kernel_of(const Kernels& kernels, DType dtype) { return dtype == kFloat32 ? kernels.adapt_float : kernels.adapt; }

}  // namespace

void reserve(const Kernels& kernels, const Adaptation& adaptation, TeamBuffers& buffers) {
  input_of(kernels, adaptation, buffers);
  inner_of(adaptation, buffers);
}

void run_in_team(const Kernels& kernels, const Adaptation& adaptation, TeamBuffers& buffers) {
  const LowRanks& added = *adaptation.added;
  const Activations x = input_of(kernels, adaptation, buffers);
  float* inner = inner_of(adaptation, buffers);
  const Adapt adapt = kernel_of(kernels, added.dtype);
  const Range own = share(adaptation.num_rows);
  for (int64_t row = own.begin; row < own.end; ++row)
    if (added.adapters[adaptation.slots[row]].num_parts)
      x.lay_out(row, adaptation.rows[row], adaptation.x, added.in_features, adaptation.norm);
#pragma omp barrier
  for_each_block(kernels, adaptation, x, inner, [&](const LowRankBlock& block, const LowRank& adapter) {
    const Range ranks = share(adapter.num_ranks);
    adapt(block, adapter.down, nullptr, ranks.begin, ranks.end);
  });
#pragma omp barrier
  for_each_block(kernels, adaptation, x, inner, [&](const LowRankBlock& block, const LowRank& adapter) {
    for (const LowRankPart* part = adapter.parts; part < adapter.parts + adapter.num_parts; ++part) {
      const Range outputs = share(ceil_div(part->num_outputs, kPanelWidth));
      adapt(block, nullptr, part, outputs.begin, outputs.end);
    }
  });
}

void combine_in_team(const Kernels& kernels, DType dtype, const void* x, int64_t rows, int64_t width,
                     int32_t activation, void* y) {
  const Range own = share(rows);
  for (int64_t row = own.begin; row < own.end; ++row) {
    if (dtype == kFloat32) {
      const float* gates = static_cast<const float*>(x) + row * 2 * width;
      kernels.combine_float(gates, gates + width, width, activation, static_cast<float*>(y) + row * width);
    } else {
      const bf16* gates = static_cast<const bf16*>(x) + row * 2 * width;
      kernels.combine(gates, gates + width, width, activation, static_cast<bf16*>(y) + row * width);
    }
  }
}

}  // namespace glimpse

using namespace glimpse;

// y += up · down · norm(x), for the rows with adapters: `slots` has the adapter of each of `rows`, which it sorts.
extern "C" void glimpse_adapt(int level, const LowRanks* added, const Norm* norm, const void* x, const int64_t* rows,
                              const int64_t* slots, int64_t num_rows, void* y) {
  if (num_rows == 0 || added->most_ranks == 0) return;
  const Kernels& kernels = kernels_of(level, added->dtype);
  const Adaptation adaptation{added, norm, x, y, rows, slots, num_rows};
  TeamBuffers& buffers = team_buffers();
  reserve(kernels, adaptation, buffers);
#pragma omp parallel
  run_in_team(kernels, adaptation, buffers);
}

// See `combine_in_team`.
extern "C" void glimpse_combine(int level, DType dtype, const void* x, int64_t rows, int64_t width, int32_t activation,
                                void* y) {
  const Kernels& kernels = kernels_of(level, dtype);
#pragma omp parallel
  combine_in_team(kernels, dtype, x, rows, width, activation, y);
}
