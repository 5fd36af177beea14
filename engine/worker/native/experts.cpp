// A mixture of experts (arXiv 2101.03961): the experts of a step's rows one after the other, each for all of its rows.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "linear.h"
#include "multiplication.h"

namespace glimpse {

namespace {

float to_float(float value) { return value; }
float to_float(bf16 value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}
void from_float(float value, float* to) { *to = value; }
void from_float(float value, bf16* to) {  // to nearest, ties to even; sums of finite numbers are not NaN
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  *to = static_cast<bf16>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// What a team shares while it computes a mixture.
struct Routing {
  Routing(const Mixture& mixture, TeamBuffers& buffers)
      : width(mixture.experts->second->out_features), num_experts(mixture.experts->num_experts),
        num_scores(mixture.experts->router->out_features), num_chosen(mixture.experts->num_chosen), rows(mixture.rows) {
    const int64_t numbers = rows * (2 * width + num_scores + 2 * num_chosen);
    const int64_t indices = 4 * rows * num_chosen + num_experts + 1 + 2 * rows;
    char* memory = buffers.experts.reserve(indices * sizeof(int64_t) + numbers * sizeof(float));
    chosen = reinterpret_cast<int64_t*>(memory);
    order = chosen + rows * num_chosen;
    slots = order + rows * num_chosen;
    places = slots + rows * num_chosen;
    sequence = places + rows * num_chosen;
    adapters = sequence + rows;
    starts = adapters + rows;
    scores = reinterpret_cast<float*>(starts + num_experts + 1);
    weights = scores + rows * num_scores;
    ordered_weights = weights + rows * num_chosen;
    outputs = ordered_weights + rows * num_chosen;
    sums = outputs + rows * width;
  }

  // Chooses the experts with the highest scores for a row, and the shared one. Equal scores: the first ones.
  void choose(int64_t row, const Experts& mixture) const {
    float* score = scores + row * num_scores;
    int64_t* experts = chosen + row * num_chosen;
    float* weight = weights + row * num_chosen;
    const int64_t last = num_experts - mixture.shares, num_routed = num_chosen - mixture.shares;
    if (mixture.shares) {
      experts[num_routed] = last;
      weight[num_routed] = num_scores > last ? 1 / (1 + std::exp(-score[last])) : 1.0f;
    }
    const float highest = *std::max_element(score, score + last);
    float total = 0, chosen_total = 0;
    for (int64_t i = 0; i < last; ++i) total += score[i] = std::exp(score[i] - highest);
    for (int64_t i = 0; i < num_routed; ++i) {
      experts[i] = std::max_element(score, score + last) - score;
      chosen_total += weight[i] = score[experts[i]];
      score[experts[i]] = -1;
    }
    for (int64_t i = 0; i < num_routed; ++i) {
      weight[i] /= mixture.renormalizes ? chosen_total : total;
      if (mixture.factors) weight[i] *= mixture.factors[experts[i]];
    }
  }

  // Sorts rows by their experts, and those of an expert by their adapters.
  void sort(const RowAdapters* adapted) const {
    const int64_t count = adapted ? adapted->count : 0;
    std::fill(adapters, adapters + rows, -1);
    for (int64_t i = 0; i < count; ++i) adapters[adapted->rows[i]] = adapted->slots[i];
    int64_t* next = sequence;
    for (int64_t row = 0; row < rows; ++row)
      if (adapters[row] < 0) *next++ = row;
    if (count) std::copy(adapted->rows, adapted->rows + count, next);
    std::fill(starts, starts + num_experts + 1, 0);
    for (int64_t i = 0; i < rows * num_chosen; ++i) ++starts[chosen[i] + 1];
    for (int64_t i = 0; i < num_experts; ++i) starts[i + 1] += starts[i];
    for (int64_t i = 0; i < rows * num_chosen; ++i) {
      const int64_t row = sequence[i / num_chosen], choice = row * num_chosen + i % num_chosen;
      const int64_t place = starts[chosen[choice]]++;
      order[place] = row;
      slots[place] = adapters[row];
      ordered_weights[place] = weights[choice];
    }
    for (int64_t i = num_experts; i > 0; --i) starts[i] = starts[i - 1];
    starts[0] = 0;
    for (int64_t expert = 0; expert < num_experts; ++expert)
      std::iota(places + starts[expert], places + starts[expert + 1], 0);
  }

  // The rows of an expert that have adapters, which are its last ones.
  RowAdapters adapted_of(int64_t expert, const RowAdapters* adapted) const {
    int64_t first = starts[expert];
    const int64_t end = starts[expert + 1];
    while (first < end && slots[first] < 0) ++first;
    return {places + first, slots + first, end - first, adapted ? adapted->most_ranks : 0};
  }

  const int64_t width, num_experts, num_scores, num_chosen, rows;
  int64_t* chosen;          // [rows, num_chosen]
  int64_t* order;           // [rows · num_chosen]: rows, sorted by their experts
  int64_t *slots, *places;  // like `order`: the adapter of a row, -1: none, and its number among those of the expert
  int64_t *sequence, *adapters;  // [rows]: the rows, those with adapters last; the adapter of each
  int64_t* starts;               // [num_experts + 1]: where the rows of each expert begin in `order`
  float* scores;                 // [rows, num_scores]
  float* weights;                // [rows, num_chosen]
  float* ordered_weights;        // in the order of `order`
  float* outputs;                // [rows, width]: of one expert
  float* sums;                   // [rows, width]
};

template <class T>
void add_residual(const Routing& routing, const Mixture& mixture, Range columns) {
  const T* residual = static_cast<const T*>(mixture.residual);
  T* y = static_cast<T*>(mixture.y);
  for (int64_t row = 0; row < routing.rows; ++row)
    for (int64_t i = row * routing.width + columns.begin; i < row * routing.width + columns.end; ++i)
      from_float(routing.sums[i] + (residual ? to_float(residual[i]) : 0.0f), y + i);
}

Mlp mlp_of(const Mixture& mixture, const Routing& routing, int64_t expert, int64_t rows, const RowAdapters* adapted) {
  const Experts& experts = *mixture.experts;
  const int32_t activation = experts.activation;
  const int64_t* order = routing.order + routing.starts[expert];
  return {experts.first + expert,
          experts.second + expert,
          mixture.norm,
          mixture.x,
          rows,
          activation,
          nullptr,
          nullptr,
          mixture.first_added ? mixture.first_added + expert : nullptr,
          mixture.second_added ? mixture.second_added + expert : nullptr,
          adapted,
          routing.outputs,
          order};
}

Linear router_of(const Mixture& mixture, const Routing& routing) {
  const Norm* norm = mixture.experts->router_norm ? mixture.experts->router_norm : mixture.norm;
  return {mixture.experts->router, norm,    mixture.x, mixture.rows, kIdentity, nullptr,
          routing.scores,          nullptr, nullptr,   nullptr};
}

}  // namespace

void reserve(const Kernels& kernels, const Mixture& mixture, TeamBuffers& buffers) {
  const Routing routing(mixture, buffers);
  reserve(kernels, router_of(mixture, routing), buffers);
  routing.starts[0] = 0;
  // An expert may compute all rows. The shared one has a size of its own.
  reserve(kernels, mlp_of(mixture, routing, 0, mixture.rows, mixture.adapted), buffers);
  routing.starts[routing.num_experts - 1] = 0;
  reserve(kernels, mlp_of(mixture, routing, routing.num_experts - 1, mixture.rows, mixture.adapted), buffers);
}

void run_in_team(const Kernels& kernels, const Mixture& mixture, TeamBuffers& buffers) {
  const Routing routing(mixture, buffers);
  run_in_team(kernels, router_of(mixture, routing), buffers);
  const Range columns = share(routing.width), rows = share(routing.rows);  // of the sums; of the scores
  for (int64_t row = 0; row < routing.rows; ++row)
    std::fill(routing.sums + row * routing.width + columns.begin, routing.sums + row * routing.width + columns.end, 0);
#pragma omp barrier
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    routing.choose(row, *mixture.experts);
  }
#pragma omp barrier
#pragma omp single
  routing.sort(mixture.adapted);  // the others wait at its end
  for (int64_t expert = 0; expert < routing.num_experts; ++expert) {
    const int64_t first = routing.starts[expert], count = routing.starts[expert + 1] - first;
    if (count == 0) continue;
    const RowAdapters adapted = routing.adapted_of(expert, mixture.adapted);
    run_in_team(kernels, mlp_of(mixture, routing, expert, count, &adapted), buffers);
#pragma omp barrier
    for (int64_t i = 0; i < count; ++i) {
      const float weight = routing.ordered_weights[first + i];
      const float* output = routing.outputs + i * routing.width;
      float* sums = routing.sums + routing.order[first + i] * routing.width;
      for (int64_t column = columns.begin; column < columns.end; ++column) sums[column] += weight * output[column];
    }
  }
  with_type(mixture.experts->second->dtype,
            [&](auto zero) { add_residual<decltype(zero)>(routing, mixture, columns); });
}

}  // namespace glimpse

using namespace glimpse;

// y = Σ weight · expert(norm(x)) + residual for x [rows, in_features]; x, the residual and y have the weights' type of
// activations.
extern "C" void glimpse_experts(int level, const Experts* experts, const Norm* norm, const void* x, int64_t rows,
                                const void* residual, void* y, const LowRanks* first_added,
                                const LowRanks* second_added, const RowAdapters* adapted) {
  if (rows == 0) return;
  const Kernels& kernels = kernels_of(level, experts->second->dtype);
  const Mixture mixture{experts, norm, x, rows, residual, y, first_added, second_added, adapted};
  TeamBuffers& buffers = team_buffers();
  reserve(kernels, mixture, buffers);
#pragma omp parallel
  run_in_team(kernels, mixture, buffers);
}
