// The kernels of processors that multiply bfloat16. Included last by the file of each such level, in its anonymous
// namespace.
#pragma once

#include "vectors.h"
#include "passes.h"
#include "rows.h"
#include "finish.h"
#include "dots.h"
#include "groups.h"
#include "multiply_bf16.h"
#include "multiply_int8.h"
#include "multiply_bytes.h"
#include "low_rank.h"

static void multiply(const Block& block, const Weight& weight) {
  if (reads_bytes(weight)) return multiply_bytes(block, weight);
  if (has_groups(weight)) return multiply_int8<true>(block, weight);
  if (is_int8(weight)) return multiply_int8<false>(block, weight);
  multiply_bf16(block);
}

static Unpack unpacker(const Weight& weight) {
  return is_int8(weight) || has_groups(weight) ? integers_unpacker(weight) : nullptr;
}

constexpr Kernels kBf16Kernels{
    false,
    kMultipliesBytes,
    kByteInputs,
    2,
    kFewRows,
    kLanes == 16 ? kFewRows : 2,
    kPairsPanels,
    lay_out_row<bf16>,
    nullptr,
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
    {},
};
