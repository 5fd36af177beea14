// Scales and minima of weights in groups. Included after vectors.h, in the same namespace.
#pragma once

// Those of consecutive output features of a group, from a place in the packed numbers on. Copied from a weight, because
// the compiler does not know that stored sums leave the weight as it is.
struct GroupNumbers {
  explicit GroupNumbers(const Weight& weight)
      : scale(weight.group_scale), minimum(weight.group_minimum), zero(weight.group_zero) {}

  f32v scales(int64_t place) const { return load<f32v>(scale + place); }
  f32v minima(int64_t place) const {
    if (minimum) return load<f32v>(minimum + place);
    return __builtin_convertvector(load_bytes(zero + place), f32v) * scales(place);
  }

  const float* scale;
  const float* minimum;
  const uint8_t* zero;
};

// total + Σ (value · scale - minimum) · x, from a group's sum of value · x.
static inline f32v add_group(f32v total, i32v sums, f32v scales, f32v minima, const GroupRow& x) {
  total = multiply_add(minima, splat(x.minus_sum), total);
  return multiply_add(__builtin_convertvector(sums, f32v), scales * splat(x.scale), total);
}
