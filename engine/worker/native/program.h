// A decode step as a list of recorded operations, which one team of threads runs. Python makes it in recorder.py;
// declarations.py reads the structures' fields here.
#pragma once

#include "types.h"

namespace glimpse {

enum OperationKind : int64_t { kLinearOperation = 0, kMlpOperation = 1, kRotateOperation = 2, kAttendOperation = 3 };

// An operation on all rows of a step. Members that its kind has no use for are null. Numbers have the program's type.
struct Operation {
  int64_t kind;
  const Weight *weight, *second;  // of products
  const Norm* norm;               // of a product's rows, or of query heads; null: none
  const Norm* key_norm;           // of key heads; null: none
  void* x;                        // overwritten where heads have norms
  const void* residual;           // null: none
  void* y;                        // result
  float* logits;                  // result of a product in float32, instead of y
  void *keys, *values;            // KV cache of the layer
  int64_t activation;             // between the products of an MLP
};

struct Program {
  const Operation* operations;
  int64_t num_operations;
  int64_t level;
  int64_t dtype;  // of activations and the KV cache
  int64_t rows;   // tokens
  // Token embeddings: a packed matrix or [vocabulary, hidden_size].
  const Weight* packed_embeddings;
  const void* embeddings;
  int64_t hidden_size;
  const int64_t* axes;  // [head_dim / 2]: axis of the positions for each frequency
  int32_t num_heads, num_kv_heads, head_dim, block_size;
  // Filled in each step, for the operations.
  void* hidden;      // [rows, hidden_size]
  float *cos, *sin;  // [rows, head_dim / 2]
};

struct DecodeInputs {
  const int64_t* token_ids;      // [rows]
  const int64_t* positions;      // [3, rows]
  const int64_t* slots;          // [rows]
  const int64_t* block_tables;   // [sequences, table_width]
  const int64_t* query_lengths;  // [sequences]: tokens of each, which are consecutive rows
  const int64_t* key_lengths;    // [sequences]
  int64_t num_sequences;
  int64_t table_width;
  const float *cos, *sin;  // [positions, head_dim / 2]: rotation of each position
};

}  // namespace glimpse
