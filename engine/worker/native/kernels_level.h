// The kernels of a level. Its file includes this last, after it has selected the level's instructions, set what
// vectors.h asks for, and set GLIMPSE_KERNELS to the kernels' name.
#pragma once

namespace glimpse {
namespace {

#include "vectors.h"
#include "passes.h"
#include "rows.h"
#include "finish.h"
#include "dots.h"
#include "groups.h"
#if GLIMPSE_BF16
#include "multiply_bf16.h"
#else
#include "multiply.h"
#endif
#include "multiply_int8.h"
#include "multiply_bytes.h"
#include "low_rank.h"

void multiply(const Block& block, const Weight& weight) {
  if (reads_bytes(weight)) return multiply_bytes(block, weight);
  if (has_groups(weight)) return multiply_int8<true>(block, weight);
  if (is_int8(weight)) return multiply_int8<false>(block, weight);
  multiply_floats(block, weight);
}

Unpack unpacker(const Weight& weight) {
  return is_int8(weight) || has_groups(weight) ? integers_unpacker(weight) : floats_unpacker(weight);
}

}  // namespace

extern const Kernels GLIMPSE_KERNELS{
    false,
    kMultipliesBytes,
    kByteInputs,
    sizeof(Element),
    kDirectRows,
    kStreamedRows,
    kPairsPanels,
    lay_out_row<bf16>,
    GLIMPSE_BF16 ? nullptr : lay_out_row<float>,
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
#if !GLIMPSE_BF16
    {shrink<float>, expand<float>},
#endif
};

}  // namespace glimpse
