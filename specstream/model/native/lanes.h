// Sixteen floats at a time, in the vector types of GCC and Clang: AVX-512, AVX2 and NEON alike.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

constexpr int64_t LANES = 16;

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef float eight __attribute__((vector_size(32)));
typedef float four __attribute__((vector_size(16)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef int16_t shorts __attribute__((vector_size(2 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef int8_t bytes __attribute__((vector_size(LANES)));
typedef uint8_t octets __attribute__((vector_size(LANES)));

struct bfloat { uint16_t bits; };

template <class V> inline V load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class V> inline void store(const V& v, void* to) { std::memcpy(to, &v, sizeof v); }

template <class To, class From> inline To bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  return load<To>(&from);
}

#if defined(__AVX512F__)  // GCC 12 converts these in halves
inline ints ints_of(bytes v) {
  return (ints)_mm512_maskz_cvtepi8_epi32((__mmask16)-1, (__m128i)v);
}
inline words words_of(octets v) {
  return (words)_mm512_maskz_cvtepu8_epi32((__mmask16)-1, (__m128i)v);
}
inline words words_of(halves v) {
  return (words)_mm512_maskz_cvtepu16_epi32((__mmask16)-1, (__m256i)v);
}
#else
inline ints ints_of(bytes v) {
  return __builtin_convertvector(__builtin_convertvector(v, shorts), ints);
}
inline words words_of(octets v) {
  return __builtin_convertvector(__builtin_convertvector(v, halves), words);
}
inline words words_of(halves v) { return __builtin_convertvector(v, words); }
#endif

inline floats floats_of(ints v) { return __builtin_convertvector(v, floats); }

inline floats wide(const float* from) { return load<floats>(from); }
inline floats wide(const bfloat* from) { return bits<floats>(words_of(load<halves>(from)) << 16); }

// The first `left` floats, which may be fewer than sixteen; zeros behind them.
template <class T> inline floats some(const T* from, int64_t left) {
  if (left >= LANES) return wide(from);
  T part[LANES] = {};
  std::memcpy(part, from, left * sizeof(T));
  return wide(part);
}

inline void store_some(const floats& v, float* to, int64_t left) {
  std::memcpy(to, &v, (left < LANES ? left : LANES) * sizeof(float));
}

inline void narrow(float v, float* to) { *to = v; }
inline void narrow(float v, bfloat* to) {  // to the nearest, ties to even
  const uint32_t raw = bits<uint32_t>(v);
  to->bits = v != v ? 0x7fc0 : (raw + 0x7fff + ((raw >> 16) & 1)) >> 16;
}

inline float sum(const floats& v) {
  struct Two { eight a, b; };
  struct Four { four a, b; };
  const Two two = bits<Two>(v);
  const Four both = bits<Four>(two.a + two.b);
  const four last = both.a + both.b;
  return (last[0] + last[2]) + (last[1] + last[3]);
}

// exp(x) to two units in the last place; 0 below -87. x is at most 88.
// Polynomial: S. Moshier, Cephes, expf.
inline floats exp(const floats& x) {
  const floats z = x * 1.44269504f;
  const ints n = __builtin_convertvector(z + (z > 0.f ? floats{} + .5f : floats{} - .5f), ints);
  const floats whole = floats_of(n);
  const floats f = x - whole * 0.693359375f - whole * -2.12194440e-4f;
  floats p = f * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.f;
  return x < -87.f ? floats{} : p * bits<floats>((n + 127) << 23);
}
