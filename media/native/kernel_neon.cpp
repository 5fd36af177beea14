// Resampling with NEON: one sample at a time, with weights of 32 bits.
#include <arm_neon.h>

#include "kernels.h"

namespace glimpse {
namespace {

// Adds sixteen samples times a weight. Sums can wrap around; the total is correct modulo 2^32.
static inline void add_samples(int32x4_t (&sums)[4], uint8x16_t samples, int32_t weight) {
  const uint16x8_t halves[2] = {vmovl_u8(vget_low_u8(samples)), vmovl_high_u8(samples)};
  for (int i = 0; i < 2; ++i) {
    sums[2 * i] = vmlaq_n_s32(sums[2 * i], vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(halves[i]))), weight);
    sums[2 * i + 1] = vmlaq_n_s32(sums[2 * i + 1], vreinterpretq_s32_u32(vmovl_high_u16(halves[i])), weight);
  }
}

static inline void resample_block(const uint8_t* from, int64_t stride, const Window& window, uint8_t* to) {
  int32x4_t sums[4][4];
  for (auto& part : sums)
    for (int32x4_t& sum : part) sum = vdupq_n_s32(1 << (kFractionBits - 1));
  for (int64_t sample = 0; sample < window.num_groups; ++sample, from += stride)
    for (int i = 0; i < 4; ++i) add_samples(sums[i], vld1q_u8(from + 16 * i), window.words[sample]);
  for (int i = 0; i < 4; ++i) {
    int16x4_t quarters[4];
    for (int j = 0; j < 4; ++j) quarters[j] = vqmovn_s32(vshrq_n_s32(sums[i][j], kFractionBits));
    const int16x8_t low = vcombine_s16(quarters[0], quarters[1]), high = vcombine_s16(quarters[2], quarters[3]);
    vst1q_u8(to + 16 * i, vcombine_u8(vqmovun_s16(low), vqmovun_s16(high)));
  }
}

#include "passes.h"

constexpr Kernel kKernel{1, 1, to_tile, resample_columns, to_rows, resample_rows};

}  // namespace

int highest_level() { return kNeon; }

const Kernel& kernel_of(int /*level*/) { return kKernel; }

}  // namespace glimpse
