// The kernels of processors that do not multiply bfloat16. Included last by the file of each such level, in its
// anonymous namespace.
#pragma once

#include "vectors.h"
#include "passes.h"
#include "rows.h"
#include "finish.h"
#include "multiply.h"
#include "dots.h"
#include "groups.h"
#include "multiply_int8.h"
#include "multiply_bytes.h"
#include "low_rank.h"

static void multiply(const Block& block, const Weight& weight) {
  if (reads_bytes(weight)) return multiply_bytes(block, weight);
  if (has_groups(weight)) return multiply_int8<true>(block, weight);
  if (is_int8(weight)) return multiply_int8<false>(block, weight);
  multiply_float(block, weight);
}

static Unpack unpacker(const Weight& weight) {
  if (is_int8(weight) || has_groups(weight)) return integers_unpacker(weight);
  return is_float32(weight) ? nullptr : unpack_panel;
}

constexpr Kernels kFloatKernels{
    false,
    kMultipliesBytes,
    kByteInputs,
    4,
    kDirectRows,
    kLanes == 16 ? kFewRows : 1,
    kPairsPanels,
    lay_out_row<bf16>,
    lay_out_row<float>,
    nullptr,
    quantize_rows,
    nullptr,
    nullptr,
    unpacker,
    multiply,
    nullptr,
    finish_all,
    kAdaptedRows,
    {shrink<bf16>, expand<bf16>},
    {shrink<float>, expand<float>},
};
