// Runs recorded decode steps: lists of operations that Python makes in recorder.py. One team of threads runs them,
// with a barrier after each operation. declarations.py reads the structures' fields here.
#include <omp.h>

#include <cstring>
#include <numeric>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "attention_rotary.h"
#include "delta_net.h"
#include "linear.h"
#include "multiplication.h"
#include "short_conv.h"
#include "types.h"

namespace glimpse {

enum OperationKind : int64_t {
  kLinearOperation = 0,
  kMlpOperation = 1,
  kRotateOperation = 2,
  kAttendOperation = 3,
  kExpertsOperation = 4,
  kGateOperation = 5,
  kDeltaNetOperation = 6,
  kShortConvOperation = 7,
};

// An operation on all rows of a step. Members that its kind has no use for are null. Numbers have the program's type.
struct Operation {
  int64_t kind;
  const Weight *weight, *second;  // of products
  const Experts* experts;
  const Norm* norm;      // of a product's rows, or of query heads; null: none
  const Norm* key_norm;  // of key heads; null: none
  void* x;               // overwritten where heads have norms
  const void* residual;  // null: none
  void* y;               // result
  float* logits;         // result of a product in float32, instead of y
  void *keys, *values;   // KV cache of the layer
  int64_t activation;    // between the products of an MLP, or of gates
  const void* gates;     // of x, or the rates of a gated delta net
  int64_t width;         // numbers of a row of x and of its gates, or of the result of gates in x
  const DeltaNetLayer* net;
  void* conv_states;  // states of the layer
  float* recurrent;
  const ShortConvLayer* conv;
  const LowRanks *added, *second_added;  // by adapters, to `weight` and `second`, or to those of each expert
};

struct Program {
  const Operation* operations;
  int64_t num_operations;
  int64_t level;
  int64_t dtype;  // of activations and the KV cache
  int64_t rows;   // tokens
  // Token embeddings: a packed matrix or [vocabulary, hidden_size]. Both null: `hidden` is filled already.
  const Weight* packed_embeddings;
  const void* embeddings;
  int64_t hidden_size;
  const int64_t* axes;  // [head_dim / 2]: axis of the positions for each frequency
  int32_t num_heads, num_kv_heads, head_dim, block_size;
  int64_t is_int8;  // keys and values, with the scales of int8.h
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
  const float *cos, *sin;         // [positions, head_dim / 2]: rotation of each position
  const int64_t *reads, *writes;  // [rows]: states, as in `StatePart`; null if no layer keeps states
  const RowAdapters* adapted;     // null: none
};

namespace {

// A step in bf16 or float.
template <class T>
class Step {
 public:
  // Prepares what all threads share.
  Step(const Program& program, const DecodeInputs& inputs)
      : program_(program), inputs_(inputs), kernels_(kernels_of(program.level, static_cast<DType>(program.dtype))),
        attention_(attention_kernels<T>(program.level, program.head_dim)), states_(delta_net_kernels<T>(program.level)),
        shape_{program.head_dim, program.head_dim, score_scale(program.head_dim)},
        tables_(inputs.block_tables, inputs.block_tables + inputs.num_sequences * inputs.table_width),
        queues_(program.num_operations), ends_(inputs.num_sequences) {
    for (int64_t i = 0; i < program_.num_operations; ++i) prepare(program_.operations[i]);
    for (int64_t row = 0; inputs.reads && row < program.rows; ++row)
      parts_.push_back({row, 1, inputs.reads[row], inputs.writes[row]});
    std::partial_sum(inputs.query_lengths, inputs.query_lengths + inputs.num_sequences, ends_.begin());
  }

  // Computes this thread's part.
  void run() {
    fill_inputs();
    for (int64_t i = 0; i < program_.num_operations; ++i) {
#pragma omp barrier
      run(program_.operations[i], queues_[i]);
    }
  }

 private:
  void prepare(const Operation& operation) {
    if (operation.kind == kLinearOperation) reserve(kernels_, linear(operation), buffers_);
    if (operation.kind == kMlpOperation) reserve(kernels_, mlp(operation), buffers_);
    if (operation.kind == kExpertsOperation) reserve(kernels_, mixture(operation), buffers_);
    if (operation.kind == kAttendOperation && !first_attend_) {
      first_attend_ = &operation;
      make_attention_tasks();
    }
  }

  // All layers attend to the same blocks, each in its own keys and values.
  void make_attention_tasks() {
    const Operation& first = *first_attend_;
    const PagedHeads heads = {first.keys,        first.values,        program_.num_heads,   program_.num_kv_heads,
                              program_.head_dim, program_.block_size, program_.is_int8 != 0};
    int64_t offset = 0;
    for (int64_t i = 0; i < inputs_.num_sequences; ++i) {
      const PagedSequence sequence = {tables_.data() + i * inputs_.table_width,
                                      static_cast<int>(inputs_.key_lengths[i]),
                                      static_cast<int>(inputs_.query_lengths[i])};
      add_jobs<T>(heads, sequence, numbers(first.x) + offset, numbers(first.y) + offset, jobs_);
      offset += inputs_.query_lengths[i] * program_.num_heads * program_.head_dim;
    }
    tasks_ = make_tasks(jobs_);
  }

  void run(const Operation& operation, WorkQueue& queue) {
    switch (operation.kind) {
      case kLinearOperation:
        return run_in_team(kernels_, linear(operation), buffers_);
      case kMlpOperation:
        return run_in_team(kernels_, mlp(operation), buffers_);
      case kExpertsOperation:
        return run_in_team(kernels_, mixture(operation), buffers_);
      case kRotateOperation:
        return rotate(operation);
      case kGateOperation:
        return gate(operation);
      case kDeltaNetOperation:
        return update_states(operation);
      case kShortConvOperation:
        return convolve(operation);
      case kAttendOperation: {
        const LayerOffset layer = {bytes(operation.keys) - bytes(first_attend_->keys),
                                   bytes(operation.values) - bytes(first_attend_->values)};
        return run_tasks(attention_, shape_, program_.head_dim, tasks_, queue, layer);
      }
    }
  }

  static const char* bytes(const void* tensor) { return static_cast<const char*>(tensor); }
  static const T* numbers(const void* tensor) { return static_cast<const T*>(tensor); }
  static T* numbers(void* tensor) { return static_cast<T*>(tensor); }

  Linear linear(const Operation& operation) const {
    Linear linear = {operation.weight,   operation.norm,   operation.x, program_.rows,   kIdentity,
                     operation.residual, operation.logits, nullptr,     operation.added, inputs_.adapted};
    if constexpr (std::is_same_v<T, float>) {
      if (!linear.wide) linear.wide = numbers(operation.y);
    } else {
      linear.narrow = numbers(operation.y);
    }
    return linear;
  }

  Mlp mlp(const Operation& operation) const {
    const int32_t activation = operation.activation;
    return {operation.weight, operation.second,   operation.norm, operation.x,     program_.rows,
            activation,       operation.residual, operation.y,    operation.added, operation.second_added,
            inputs_.adapted};
  }

  Mixture mixture(const Operation& operation) const {
    return {operation.experts, operation.norm,         operation.x,    program_.rows, operation.residual, operation.y,
            operation.added,   operation.second_added, inputs_.adapted};
  }

  void rotate(const Operation& operation) const {
    const RotaryStore<T> store = {numbers(operation.x),
                                  program_.cos,
                                  program_.sin,
                                  inputs_.slots,
                                  program_.num_heads,
                                  program_.num_kv_heads,
                                  program_.head_dim,
                                  program_.block_size,
                                  operation.norm,
                                  operation.key_norm,
                                  nullptr,
                                  operation.keys,
                                  operation.values,
                                  numbers(operation.y),
                                  program_.is_int8 != 0};
    const Range heads = share(program_.rows * store.all_heads());
    for (int64_t i = heads.begin; i < heads.end; ++i)
      rotate_and_store_head(store, i / store.all_heads(), i % store.all_heads());
  }

  void gate(const Operation& operation) const {
    const Range range = share(program_.rows * operation.width);
    states_.multiply_gates(numbers(operation.x) + range.begin, numbers(operation.gates) + range.begin,
                           range.end - range.begin, numbers(operation.y) + range.begin);
  }

  void update_states(const Operation& operation) const {
    const StateStep<T> step = {*operation.net,           numbers(operation.x),
                               numbers(operation.gates), numbers(operation.conv_states),
                               operation.recurrent,      numbers(operation.y)};
    const int64_t num_heads = operation.net->num_key_heads;
    const Range tasks = share(inputs_.num_sequences * num_heads);
    for (int64_t task = tasks.begin; task < tasks.end; ++task) {
      const int64_t i = task / num_heads;
      // A draft token reads what the token before it has written.
      for (int64_t row = ends_[i] - inputs_.query_lengths[i]; row < ends_[i]; ++row)
        states_.update(step, parts_[row], static_cast<int>(task % num_heads));
    }
  }

  void convolve(const Operation& operation) const {
    const Range tasks = share(short_conv_tasks(*operation.conv));
    for (int64_t task = tasks.begin; task < tasks.end; ++task) {
      run_short_conv(*operation.conv, parts_.data(), program_.rows, numbers(operation.x),
                     numbers(operation.conv_states), numbers(operation.y), task);
    }
  }

  void fill_inputs() const {
    const Range rows = share(program_.rows);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      embed(row);
      fill_rotation(inputs_.cos, program_.cos, row);
      fill_rotation(inputs_.sin, program_.sin, row);
    }
  }

  void embed(int64_t row) const {
    const int64_t size = program_.hidden_size;
    const int64_t* token_id = inputs_.token_ids + row;
    T* hidden = numbers(program_.hidden) + row * size;
    if (program_.packed_embeddings) glimpse_unpack_rows(program_.packed_embeddings, token_id, 1, hidden);
    else if (program_.embeddings)
      std::memcpy(hidden, numbers(program_.embeddings) + *token_id * size, size * sizeof(T));
  }

  void fill_rotation(const float* table, float* filled, int64_t row) const {
    const int64_t half = program_.head_dim / 2;
    for (int64_t i = 0; i < half; ++i) {
      const int64_t position = inputs_.positions[program_.axes[i] * program_.rows + row];
      filled[row * half + i] = table[position * half + i];
    }
  }

  const Program& program_;
  const DecodeInputs& inputs_;
  const Kernels& kernels_;
  const AttentionKernels<T>& attention_;
  const DeltaNetKernels<T>& states_;
  const HeadShape shape_;
  TeamBuffers& buffers_ = team_buffers();
  const std::vector<int32_t> tables_;
  const Operation* first_attend_ = nullptr;
  std::vector<Job<T>> jobs_;
  std::vector<Task<T>> tasks_;
  std::vector<StatePart> parts_;   // each row
  std::vector<int64_t> ends_;      // [sequences]: the row after each
  std::vector<WorkQueue> queues_;  // of each operation's attention
};

}  // namespace
}  // namespace glimpse

// Runs a decode step. The results of operations are bit-identical to those of the functions that run them one by one.
extern "C" void glimpse_run_program(const glimpse::Program* program, const glimpse::DecodeInputs* inputs) {
  glimpse::with_type(static_cast<glimpse::DType>(program->dtype), [&](auto zero) {
    glimpse::Step<decltype(zero)> step(*program, *inputs);
#pragma omp parallel
    step.run();
  });
}

// Bytes of the structures that Python passes, in the order of STRUCTURES in library.py.
extern "C" int64_t glimpse_structure_bytes(int index) {
  using namespace glimpse;
  constexpr int64_t kBytes[] = {sizeof(Weight),         sizeof(Norm),        sizeof(Experts), sizeof(DeltaNetLayer),
                                sizeof(ShortConvLayer), sizeof(LowRankPart), sizeof(LowRank), sizeof(LowRanks),
                                sizeof(RowAdapters),    sizeof(Operation),   sizeof(Program), sizeof(DecodeInputs)};
  return kBytes[index];
}
