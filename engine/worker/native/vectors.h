// Vectors of float32 lanes in the compiler's vector types: 16 lanes with AVX-512, 8 with AVX2, 4 with NEON. A wider
// type than the registers would go through the stack. Included inside an anonymous namespace of a file that selects the
// instruction set and, because GCC before 14 does not define __AVX512F__ after its target pragma, sets
//   GLIMPSE_LANES  16: AVX-512 F, BW, DQ, VL; 8: AVX2 and FMA; 4: NEON
//   GLIMPSE_BF16   1: AVX-512 BF16, or BF16 of ARMv8.6
//   GLIMPSE_DOTS   1: dot products of bytes: AVX-512 VNNI, AVX-VNNI, or those of ARMv8.2; 2: products of matrices of
//                  bytes: I8MM of ARMv8.6
#pragma once

constexpr int kLanes = GLIMPSE_LANES;
constexpr int kTileVectors = 16 / kLanes;  // vectors of a tile's 16 output features

typedef float f32v __attribute__((vector_size(4 * kLanes)));
typedef int32_t i32v __attribute__((vector_size(4 * kLanes)));
typedef uint32_t u32v __attribute__((vector_size(4 * kLanes)));
typedef int16_t s16w __attribute__((vector_size(4 * kLanes)));
typedef uint16_t u16w __attribute__((vector_size(4 * kLanes)));
typedef uint16_t u16v __attribute__((vector_size(2 * kLanes)));
typedef int16_t i16v __attribute__((vector_size(2 * kLanes)));
typedef int8_t i8v __attribute__((vector_size(kLanes)));

template <class T>
static inline T load(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
static inline void store(void* to, T value) {
  __builtin_memcpy(to, &value, sizeof value);
}

// What the compiler's vector types do not express.
#if GLIMPSE_LANES == 4
#include "vectors_neon.h"
#else
#include "vectors_x86.h"
#endif

// For kernels that take longer for a cache line than the memory does: the L1 cache would lose it before it is used.
[[maybe_unused]] static inline void prefetch_to_l2(const char* address) { __builtin_prefetch(address, 0, 2); }

static inline f32v widen(u16v value) { return reinterpret_cast<f32v>(__builtin_convertvector(value, u32v) << 16); }

#if !GLIMPSE_BF16
static inline u16v narrow(f32v value) {  // to nearest, ties to even
  u32v bits = reinterpret_cast<u32v>(value);
  return __builtin_convertvector((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, u16v);
}
#endif

static inline f32v load_bf16(const bf16* from) { return widen(load<u16v>(from)); }

// The first `count` elements, then zeros.
static inline f32v load_wide(const bf16* from, int64_t count) {
  if (count >= kLanes) return load_bf16(from);
  u16v value{};
  if (count > 0) __builtin_memcpy(&value, from, count * sizeof(bf16));
  return widen(value);
}
[[maybe_unused]] static inline f32v load_wide(const float* from, int64_t count) {
  if (count >= kLanes) return load<f32v>(from);
  f32v value{};
  if (count > 0) __builtin_memcpy(&value, from, count * sizeof(float));
  return value;
}

static inline void store_bf16(bf16* to, f32v value, int64_t count) {
  if (count >= kLanes) return store(to, narrow(value));
  u16v narrowed = narrow(value);
  if (count > 0) __builtin_memcpy(to, &narrowed, count * sizeof(bf16));
}

static inline void store_f32(float* to, f32v value, int64_t count) {
  if (count >= kLanes) return store(to, value);
  if (count > 0) __builtin_memcpy(to, &value, count * sizeof(float));
}

static inline float sum(f32v value) {
  float total = 0;
  for (int i = 0; i < kLanes; ++i) total += value[i];
  return total;
}

// 2^x to 1e-7 of it, with x clamped to ±126; NaN stays NaN.
static inline f32v power_of_two(f32v x) {
  x = x > 126.0f ? splat(126.0f) : x;
  x = x < -126.0f ? splat(-126.0f) : x;
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer, in the lowest bits
  const f32v shifted = x + kRound;
  const f32v fraction = x - (shifted - kRound);
  f32v power = splat(0.0013264725f);  // the minimax polynomial of degree 5 on ±0.5 that is 1 at 0
  power = power * fraction + 0.009671513f;
  power = power * fraction + 0.055507336f;
  power = power * fraction + 0.24022242f;
  power = power * fraction + 0.693147f;
  power = power * fraction + 1.0f;
  return reinterpret_cast<f32v>(reinterpret_cast<u32v>(power) + (reinterpret_cast<u32v>(shifted) << 23));
}

static inline f32v sigmoid(f32v x) { return reciprocal(1.0f + power_of_two(x * -1.44269504088896341f)); }
