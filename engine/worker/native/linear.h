// Products of a team of OpenMP threads, for callers that run several in one parallel region.
#pragma once

#include "activations.h"
#include "kernels.h"

namespace glimpse {

// Buffers that a team shares in a product. The product after it may use them once all threads have finished.
struct TeamBuffers {
  Buffer input[3], inner[3], experts;
};

// y = activation(norm(x) Wᵀ + b) + residual
struct Linear {
  const Weight* weight;
  const Norm* norm;  // null: none
  const void* x;     // [rows, in_features], of the weight's type of activations
  int64_t rows;      // at least 1
  int32_t activation;
  const void* residual;  // like x
  float* wide;           // [rows, out_features]; this or `narrow`
  bf16* narrow;          // [rows, out_features]
};

// y = second(activation(first(norm(x)))) + residual
struct Mlp {
  const Weight *first, *second;
  const Norm* norm;
  const void* x;  // [rows, in_features of `first`], of the weights' type of activations
  int64_t rows;   // at least 1
  int32_t activation;
  const void* residual;  // like x
  void* y;               // [rows, out_features of `second`], like x; this or `wide`
  float* wide = nullptr;
  const int64_t* order = nullptr;  // [rows]: row i is row order[i] of x; null: i
};

// A mixture of gated MLPs. declarations.py reads its fields here.
struct Experts {
  const Weight* router;             // [num_experts, in_features]; without the shared one if that has no score
  const Weight *first, *second;     // [num_experts]
  int64_t num_experts, num_chosen;  // with the shared one
  int64_t shares;        // 1: the last expert computes all rows, weighed by its score's sigmoid if it has one
  int64_t renormalizes;  // 1: the weights of a row's experts add up to 1
  int64_t activation;
  const Norm* router_norm;  // of the router's rows; null: that of the experts'
  const float* factors;     // [num_experts], of the experts' weights; null: 1
};

// y = Σ weight · expert(norm(x)) + residual, over the `num_chosen` experts with the highest scores for each row, of
// which a shared one is always the last
struct Mixture {
  const Experts* experts;
  const Norm* norm;
  const void* x;         // [rows, in_features], of the weights' type of activations
  int64_t rows;          // at least 1
  const void* residual;  // like x
  void* y;               // like x
};

// What an adapter adds to a linear. Its numbers have the type of activations. declarations.py reads its fields here.
struct LowRank {
  const void* down;  // [num_ranks][in_features, padded to tiles with zeros]: the matrices of all parts
  int64_t num_ranks;
  const LowRankPart* parts;
  int64_t num_parts;  // 0: nothing
};

// What all adapters add to a linear. declarations.py reads its fields here.
struct LowRanks {
  const LowRank* adapters;
  int64_t most_ranks;  // of an adapter
  int64_t in_features, out_features;
  DType dtype;  // of activations
};

// y += up · down · norm(x), for rows with adapters.
struct Adaptation {
  const LowRanks* added;
  const Norm* norm;             // null: none
  const void* x;                // [all rows, in_features]
  void* y;                      // [all rows, out_features]
  const int64_t *rows, *slots;  // [num_rows]: the rows, sorted by adapters, and the adapter of each
  int64_t num_rows;             // at least 1
};

const Kernels& kernels_of(int level, DType dtype);

// The calling thread's, for each of its teams.
TeamBuffers& team_buffers();

// Reserves what `run_in_team` needs. Called before the parallel region, because buffers may move.
void reserve(const Kernels& kernels, const Linear& linear, TeamBuffers& buffers);
void reserve(const Kernels& kernels, const Mlp& mlp, TeamBuffers& buffers);
void reserve(const Kernels& kernels, const Mixture& mixture, TeamBuffers& buffers);
void reserve(const Kernels& kernels, const Adaptation& adaptation, TeamBuffers& buffers);

// Computes this thread's part. Every thread of the team calls it; inputs must be complete, and the result is complete
// after the next barrier.
void run_in_team(const Kernels& kernels, const Linear& linear, TeamBuffers& buffers);
void run_in_team(const Kernels& kernels, const Mlp& mlp, TeamBuffers& buffers);
void run_in_team(const Kernels& kernels, const Mixture& mixture, TeamBuffers& buffers);
void run_in_team(const Kernels& kernels, const Adaptation& adaptation, TeamBuffers& buffers);

// y = activation(gates) · ups for x [rows, 2 · width], gates first. Every thread of the team calls it.
void combine_in_team(const Kernels& kernels, DType dtype, const void* x, int64_t rows, int64_t width,
                     int32_t activation, void* y);

}  // namespace glimpse

extern "C" void glimpse_unpack_rows(const glimpse::Weight* weight, const int64_t* rows, int64_t count, void* unpacked);
