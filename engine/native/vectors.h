// Vectors of 16 elements in the compiler's vector types; the including file selects the instruction set.
// Included inside an anonymous namespace of that file, so that each instruction set has its own copy.
#pragma once

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

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

static inline f32x16 splat(float value) { return f32x16{} + value; }

static inline f32x16 widen(u16x16 value) {
  return reinterpret_cast<f32x16>(__builtin_convertvector(value, u32x16) << 16);
}

static inline u16x16 narrow(f32x16 value) {  // to nearest, ties to even
#ifdef __AVX512BF16__
  return reinterpret_cast<u16x16>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(value)));
#else
  u32x16 bits = reinterpret_cast<u32x16>(value);
  return __builtin_convertvector((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, u16x16);
#endif
}

static inline f32x16 load_bf16(const bf16* from) { return widen(load<u16x16>(from)); }

static inline f32x16 load_bf16(const bf16* from, int64_t count) {
  if (count >= 16) return load_bf16(from);
  u16x16 value{};
  __builtin_memcpy(&value, from, count * sizeof(bf16));
  return widen(value);
}

static inline void store_bf16(bf16* to, f32x16 value, int64_t count) {
  if (count >= 16) return store(to, narrow(value));
  u16x16 narrowed = narrow(value);
  __builtin_memcpy(to, &narrowed, count * sizeof(bf16));
}

static inline void store_f32(float* to, f32x16 value, int64_t count) {
  if (count >= 16) return store(to, value);
  __builtin_memcpy(to, &value, count * sizeof(float));
}

static inline float sum(f32x16 value) {
  float total = 0;
  for (int i = 0; i < 16; ++i) total += value[i];
  return total;
}

// e^x to about 2 ulp: 2^n times a polynomial (Cephes' expf), with x clamped to the range of normal floats.
static inline f32x16 exponential(f32x16 x) {
  x = x > 88.0f ? splat(88.0f) : x;
  x = x < -87.0f ? splat(-87.0f) : x;
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer
  f32x16 shifted = x * 1.44269504088896341f + kRound;
  f32x16 n = shifted - kRound;
  f32x16 r = x - n * 0.693359375f - n * -2.12194440e-4f;
  f32x16 p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  i32x16 exponent = (reinterpret_cast<i32x16>(shifted) - reinterpret_cast<i32x16>(splat(kRound)) + 127) << 23;
  return p * reinterpret_cast<f32x16>(exponent);
}

static inline f32x16 reciprocal(f32x16 x) {
#ifdef __AVX512F__
  // A division would take as long as the rest of a block's activation.
  f32x16 near = reinterpret_cast<f32x16>(_mm512_rcp14_ps(reinterpret_cast<__m512>(x)));
  return near * (2.0f - x * near);
#else
  return 1.0f / x;
#endif
}

static inline f32x16 sigmoid(f32x16 x) { return reciprocal(1.0f + exponential(-x)); }
