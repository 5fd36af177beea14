// Products of weights of 8 bits, int8 or in groups, and activations of 15 bits, or of 8 where bytes cannot be
// multiplied. Included after dots.h, in the same namespace.
//
// Four weights of a feature lie in 32 bits. The even and the odd ones are widened to pairs of 16 bits, which are
// multiplied by pairs of activations in the same order (see `quantize_rows`). The sum of a group of activations is
// exact: Σ value · x. Products of matrices of bytes have the planes of activations instead. Such sums are then scaled
// and added in order in float32, so a row's result is bit-identical for any number of rows, and at every level that has
// these kernels.
#pragma once

// Rows whose sums are in registers at a time, and vectors of a panel.
constexpr int kInt8Rows = kLanes == 16 ? 8 : kLanes == 8 ? 6 : kPaired == 2 ? 4 : 5;
constexpr int int8_vectors(int rows) {
  if (kPaired == 2 && rows > 2) return kTileVectors / 2;
  return kLanes == 16 || rows == 1 ? 2 * kTileVectors : kTileVectors;
}

// Sums of each row and vector: products of few rows would wait for each other, and matrices have two of their own.
constexpr int num_chains(int rows) { return kPaired == 2 || rows <= 2 ? 2 : 1; }

// Widens lines of four weights to a line of even ones and a line of odd ones.
template <bool kGroups>
static void unpack_pairs(const char* panel, int64_t num_lines, void* memory) {
  char* unpacked = static_cast<char*>(memory);
  for (int64_t line = 0; line < num_lines; ++line, panel += kLineBytes, unpacked += 2 * kLineBytes)
    for (int odd = 0; odd < 2; ++odd)
      for (int v = 0; v < 2 * kTileVectors; ++v)
        store(unpacked + odd * kLineBytes + v * (4 * kLanes), load_pairs<kGroups>(panel + v * (4 * kLanes), odd));
}

// Adds the products of some lines of weights.
template <int kRows, int kVectors, bool kGroups, bool kUnpacked>
static inline __attribute__((always_inline)) void add_lines(int64_t lines, const char* weights, int64_t second,
                                                            const char* x,
                                                            i32v (&sums)[num_chains(kRows)][kRows][kVectors]) {
#pragma GCC unroll 1  // else the compiler loads several lines ahead, and spills sums
  for (int64_t line = 0; line < lines; line += kPaired, x += kPaired * 8) {
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      i32v weight[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        if (kUnpacked) weight[v] = load<i32v>(place_in_panels(weights + odd * kLineBytes, second, v));
        else weight[v] = load_pairs<kGroups>(weights + v * (4 * kLanes), odd);
      }
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        const i32v inputs = load_pair_of_row(x + row * (2 * kTileInputs), odd);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          i32v& sum = sums[odd % num_chains(kRows)][row][v];
          sum = add_pairs<kGroups>(sum, weight[v], inputs);
        }
      }
    }
    weights += (kUnpacked ? 2 : 1) * kPaired * kLineBytes;
  }
}

// Multiplies rows [first, first + kRows) by vectors of a panel from `vector` on.
template <int kRows, int kVectors, bool kGroups, bool kUnpacked>
static inline void multiply_int8_rows(const Block& block, const Weight& weight, Prefetches& shared, int64_t first,
                                      int64_t vector) {
  constexpr int64_t kSteps = kGroups ? 1 : kGroupSteps;
  const int64_t inputs_of_step = kGroups ? weight.group_size : 64;
  const int64_t inputs = kGroups ? inputs_of_block(weight) : kTileInputs, lines = inputs / 4;  // multiplied at a time
  const GroupNumbers numbers(weight);
  int64_t feature = (block.index * num_steps(weight) + block.first_step) * kPanelWidth + vector * kLanes;
  const char* weights = block.panel + vector * (4 * kLanes);
  const int64_t second = second_panel_bytes(block), second_feature = (num_steps(weight) - 1) * kPanelWidth;
  const char* x = block.tiles + first * (2 * kTileInputs);
  int64_t input = block.first_step * inputs_of_step % kTileInputs;  // from the first tile of activations on
  Prefetches prefetches = shared;                                   // a copy, which stays in registers
  const GroupRow* groups = block.groups + first;
  float* const stored = block.sums + place_of_sums(first, vector);
  for (int64_t step = 0; step < block.num_steps; groups += kTileRows) {
    i32v sums[num_chains(kRows)][kRows][kVectors]{};
    const int64_t end = step + kSteps < block.num_steps ? step + kSteps : block.num_steps;
    const bool adds = block.adds || step > 0;
    for (; step < end; ++step) {
      prefetches.prefetch_part(0, 1);
      prefetches.end_step();
#pragma GCC unroll 1
      for (int64_t i = 0; i < inputs_of_step; i += inputs, input += inputs) {
        add_lines<kRows, kVectors, kGroups, kUnpacked>(lines, weights, second, x + 2 * place_of(input), sums);
        weights += (kUnpacked ? 2 : 1) * lines * kLineBytes;
      }
    }
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const int64_t number = feature + v * kLanes + (v < kVectorsOfPanel ? 0 : second_feature);
      const f32v scales = kGroups ? numbers.scales(number) : splat(1.0f);
      const f32v minima = kGroups ? numbers.minima(number) : f32v{};
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        float* place = stored + place_of_sums(row, v);
        const f32v before = adds ? load<f32v>(place) : f32v{};
        i32v sum = sums[0][row][v];
        if (num_chains(kRows) == 2) sum = total_of_halves(sum, sums[num_chains(kRows) - 1][row][v]);
        store(place, kGroups ? add_group(before, sum, scales, minima, groups[row])
                             : multiply_add(__builtin_convertvector(sum, f32v), splat(groups[row].scale), before));
      }
    }
    feature += kPanelWidth;
  }
  shared = prefetches;
}

// Multiplies `rows` rows, at most kRows, by both tiles of a panel.
template <int kRows, bool kGroups, bool kUnpacked>
static void multiply_int8_up_to(const Block& block, const Weight& weight, Prefetches& prefetches, int64_t first,
                                int64_t rows) {
  if constexpr (kRows > 0) {
    if (rows < kRows) return multiply_int8_up_to<kRows - 1, kGroups, kUnpacked>(block, weight, prefetches, first, rows);
    for (int64_t vector = 0; vector < 2 * kTileVectors; vector += int8_vectors(kRows))
      multiply_int8_rows<kRows, int8_vectors(kRows), kGroups, kUnpacked>(block, weight, prefetches, first, vector);
  }
}

template <bool kGroups, bool kUnpacked>
static void multiply_int8_all(const Block& block, const Weight& weight) {
  if constexpr (kUnpacked && kPairsPanels)
    if (block.second_panel)
      return multiply_pair(block, [&](auto rows, Prefetches& prefetches, int64_t first) {
        multiply_int8_rows<decltype(rows)::value, kPairedVectors, kGroups, true>(block, weight, prefetches, first, 0);
      });
  multiply_few_at_a_time<kInt8Rows, 1>(
      block, [](int64_t rows) { return 2 * kTileVectors / int8_vectors(rows); },
      [&](Prefetches& prefetches, int64_t first, int64_t rows) {
        multiply_int8_up_to<kInt8Rows, kGroups, kUnpacked>(block, weight, prefetches, first, rows);
      });
}

template <bool kGroups>
static void multiply_int8(const Block& block, const Weight& weight) {
  if (block.unpacked) multiply_int8_all<kGroups, true>(block, weight);
  else multiply_int8_all<kGroups, false>(block, weight);
}
