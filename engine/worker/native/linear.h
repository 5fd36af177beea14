// Products of a team of OpenMP threads, for callers that run several in one parallel region.
#pragma once

#include "activations.h"
#include "adaptation.h"
#include "kernels.h"
#include "team.h"

namespace glimpse {

// Buffers that a team shares in a product. The product after it may use them once all threads have finished.
struct TeamBuffers {
  Buffer input[3], inner[3], experts, adapted;
  WorkQueue panels[2];  // of a product, and of the one after it in an MLP
};

// y = activation(norm(x) Wᵀ + b) + residual, where W is another one for rows with adapters
struct Linear {
  const Weight* weight;
  const Norm* norm;  // null: none
  const void* x;     // [rows, in_features], of the weight's type of activations
  int64_t rows;      // at least 1
  int32_t activation;
  const void* residual;        // like x
  float* wide;                 // [rows, out_features]; this or `narrow`
  bf16* narrow;                // [rows, out_features]
  const LowRanks* added;       // to W; null: nothing
  const RowAdapters* adapted;  // null: none
};

// y = second(activation(first(norm(x)))) + residual, with linears as above
struct Mlp {
  const Weight *first, *second;
  const Norm* norm;
  const void* x;  // [rows, in_features of `first`], of the weights' type of activations
  int64_t rows;   // at least 1
  int32_t activation;
  const void* residual;  // like x
  void* y;               // [rows, out_features of `second`], like x; this or `wide`
  const LowRanks *first_added, *second_added;
  const RowAdapters* adapted;
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
  const void* x;                               // [rows, in_features], of the weights' type of activations
  int64_t rows;                                // at least 1
  const void* residual;                        // like x
  void* y;                                     // like x
  const LowRanks *first_added, *second_added;  // [num_experts]; null: nothing
  const RowAdapters* adapted;                  // null: none
};

const Kernels& kernels_of(int level, DType dtype);

// The calling thread's, for each of its teams.
TeamBuffers& team_buffers();

// Reserves what `run_in_team` needs. Called before the parallel region, because buffers may move.
void reserve(const Kernels& kernels, const Linear& linear, TeamBuffers& buffers);
void reserve(const Kernels& kernels, const Mlp& mlp, TeamBuffers& buffers);
void reserve(const Kernels& kernels, const Mixture& mixture, TeamBuffers& buffers);

// Computes this thread's part. Every thread of the team calls it; inputs must be complete, and the result is complete
// after the next barrier.
void run_in_team(const Kernels& kernels, const Linear& linear, TeamBuffers& buffers);
void run_in_team(const Kernels& kernels, const Mlp& mlp, TeamBuffers& buffers);
void run_in_team(const Kernels& kernels, const Mixture& mixture, TeamBuffers& buffers);

}  // namespace glimpse

extern "C" void glimpse_unpack_rows(const glimpse::Weight* weight, const int64_t* rows, int64_t count, void* unpacked);
