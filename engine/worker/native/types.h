// Structures that Python passes. declarations.py reads their fields here.
//
// A packed matrix is a sequence of panels, each with 32 output features and all inputs. A panel is a sequence of steps:
// - float32: a step is 4 KiB, 32 inputs with 32 output features each.
// - bfloat16 and int8: a step is 2 KiB, 16 lines of 32 output features, each with two consecutive bfloat16 inputs or
//   four int8 inputs, so 32 or 64 inputs. Each half of the lines, a tile, is an operand of AMX.
// - in groups: a step is a group of inputs, in blocks of 32 inputs. With 8 bits, a block has 8 lines as above, and in
//   groups of 16 inputs, which are blocks themselves, 4 lines. With 4 bits, it has 4 lines: byte j of feature f in line
//   i has input 4 · i + j of the block in its low nibble, and input 16 + 4 · i + j in its high nibble.
// Padding is zero.
#pragma once

#include <cstdint>

namespace glimpse {

using bf16 = uint16_t;

// Of activations, and of weights that are not quantized.
enum DType : int32_t { kBfloat16 = 0, kFloat32 = 1 };

// Calls body with a number of a type.
template <class Body>
void with_type(DType dtype, const Body& body) {
  if (dtype == kFloat32) body(float{});
  else body(bf16{});
}

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileInputs = 32;  // of bfloat16 or float32
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kPanelWidth = 32;
constexpr int64_t kLineBytes = 4 * kPanelWidth;
constexpr int64_t kStepBytes = 16 * kLineBytes;
constexpr int64_t kFloatStepBytes = kTileInputs * kPanelWidth * 4;
// As many products of 8 bits without a sign and of 15 bits add up to 32 bits.
constexpr int64_t kMostGroupInputs = 512;

struct Weight {
  const void* panels;
  const float* scale;  // of each output feature, in panel order; null: not int8
  const float* bias;   // of each output feature, in panel order; null: none
  int64_t in_features;
  int64_t out_features;  // of a gated matrix: gate and up together
  int64_t gated;         // 1: a panel has 16 features of gate and the same 16 of up
  // Unsigned weights in groups: value · scale - minimum, with a scale and a minimum for each output feature and group.
  const float* group_scale;    // [panels][groups][32]
  const float* group_minimum;  // [panels][groups][32]; null: group_zero · group_scale
  const uint8_t* group_zero;   // [panels][groups][32]; null: there are minima
  // Inputs of a group: a multiple of 32, with 8 bits at most kMostGroupInputs, or 16; 0: not in groups.
  int64_t group_size;
  int64_t group_bits;          // 4 or 8
  int64_t byte_inputs;         // 1: activations are rounded to 8 bits for weights of 8 bits, too
  const int32_t* input_order;  // [in_features]: input i of the groups is x[input_order[i]]; null: x[i]
  DType dtype;                 // of activations, and of the weights if they are neither int8 nor in groups
};

// Its numbers have the type of activations.
struct Norm {
  const void* weight;  // [in_features]
  const void* bias;    // null: none
  float eps;
  int32_t centered;  // 1: LayerNorm, 0: RMSNorm
};

enum Activation : int32_t { kIdentity = 0, kGatedSilu = 1, kQuickGelu = 2, kGeluTanh = 3, kGatedGeluTanh = 4 };

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline bool is_int8(const Weight& w) { return w.scale != nullptr; }
inline bool has_groups(const Weight& w) { return w.group_size != 0; }
inline bool is_int4(const Weight& w) { return has_groups(w) && w.group_bits == 4; }
inline bool has_byte_inputs(const Weight& w) { return is_int4(w) || w.byte_inputs; }
inline bool is_float32(const Weight& w) { return w.dtype == kFloat32 && !is_int8(w) && !has_groups(w); }
inline int64_t inputs_of_step(const Weight& w) { return has_groups(w) ? w.group_size : is_int8(w) ? 64 : 32; }
inline int64_t inputs_of_block(const Weight& w) { return w.group_size < kTileInputs ? w.group_size : kTileInputs; }
inline int64_t num_steps(const Weight& w) { return ceil_div(w.in_features, inputs_of_step(w)); }
inline int64_t step_bytes(const Weight& w) {
  if (has_groups(w)) return w.group_size * kPanelWidth * w.group_bits / 8;
  return is_float32(w) ? kFloatStepBytes : kStepBytes;
}
inline int64_t panel_bytes(const Weight& w) { return num_steps(w) * step_bytes(w); }

// Output features after the activation: half of the features of a gated matrix.
inline int64_t width_of(const Weight& w) { return w.gated ? w.out_features / 2 : w.out_features; }
inline int64_t num_panels(const Weight& w) { return ceil_div(width_of(w), w.gated ? kPanelWidth / 2 : kPanelWidth); }

}  // namespace glimpse
