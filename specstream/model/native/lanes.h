// Vectors of as many floats as a register holds, by the vector extensions of GCC and Clang. (GCC keeps wider
// vectors in memory.)
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
constexpr int64_t LANES = 16, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int64_t LANES = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int64_t LANES = 4, REGISTERS = 32;
#else
constexpr int64_t LANES = 4, REGISTERS = 16;
#endif

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef float four __attribute__((vector_size(16)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef int8_t bytes __attribute__((vector_size(LANES)));
typedef uint8_t octets __attribute__((vector_size(LANES)));

struct bfloat { uint16_t bits; };

#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_DOTPROD)
#define QUADS
#endif

#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__) && defined(QUADS) && \
    defined(__linux__)
#define TILES
#endif

// AMD's CPUs from Zen 4 on (which GCC 12 calls Zen 3) multiply pairs of bfloat16 twice as fast as floats.
// Intel's multiply them no faster, except by the matrix unit, which takes pairs. ARM's have bfdot.
#if defined(TILES) || \
    (defined(__AVX512BF16__) && (defined(__znver3__) || defined(__znver4__) || defined(__znver5__)))
#define PAIRS
typedef __m512bh pairs;
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define PAIRS
typedef bfloat16x8_t pairs;
#endif

// Unrolls a loop before GCC decides which arrays of vectors to keep in registers.
#define UNROLLED _Pragma("GCC unroll 16")

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

#if defined(__AVX512F__)  // by intrinsics, since GCC 12 converts these in two halves
inline ints ints_of(bytes v) {
  return (ints)_mm512_maskz_cvtepi8_epi32((__mmask16)-1, (__m128i)v);
}
inline words words_of(octets v) {
  return (words)_mm512_maskz_cvtepu8_epi32((__mmask16)-1, (__m128i)v);
}
inline words words_of(halves v) {
  return (words)_mm512_maskz_cvtepu16_epi32((__mmask16)-1, (__m256i)v);
}
#elif defined(__AVX2__)  // by intrinsics, since GCC 12 converts these element by element
inline ints ints_of(bytes v) { return (ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((__m128i*)&v)); }
inline words words_of(octets v) {
  return (words)_mm256_cvtepu8_epi32(_mm_loadl_epi64((__m128i*)&v));
}
inline words words_of(halves v) { return (words)_mm256_cvtepu16_epi32((__m128i)v); }
#else
inline ints ints_of(bytes v) { return __builtin_convertvector(v, ints); }
inline words words_of(octets v) { return __builtin_convertvector(v, words); }
inline words words_of(halves v) { return __builtin_convertvector(v, words); }
#endif

// Forces v into a register: GCC would otherwise read it from memory again at each use, which is slower.
template <class V> inline void held(V& v) {
#if defined(__x86_64__) && defined(__AVX2__)
  asm("" : "+v"(v));
#endif
}

inline floats all(float v) { return floats{} + v; }

inline floats floats_of(ints v) { return __builtin_convertvector(v, floats); }

inline floats wide(const float* from) { return load<floats>(from); }
inline floats wide(const bfloat* from) { return bits<floats>(words_of(load<halves>(from)) << 16); }

// a * b + c. Explicit, and compiled with -ffp-contract=off, because the compiler would fuse in some places and
// not in others, and a row's bits would then depend on the rows beside it.
inline floats fused(floats a, floats b, floats c) {
#if defined(__AVX512F__)
  return (floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

#if defined(PAIRS)
// fused adds both products of each lane's pairs to the lane's sum.
#if defined(__aarch64__)
inline floats fused(pairs a, pairs b, floats sum) {
  return (floats)vbfdotq_f32((float32x4_t)sum, a, b);
}
inline pairs pairs_of(floats first, floats second) {
  return vcvtq_high_bf16_f32(vcvtq_low_bf16_f32((float32x4_t)first), (float32x4_t)second);
}
#else
inline floats fused(pairs a, pairs b, floats sum) {
  return (floats)_mm512_dpbf16_ps((__m512)sum, a, b);
}
inline pairs pairs_of(floats first, floats second) {
  return _mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}
#endif
#endif

// Loads the first `left` values, which may be fewer than a register holds; zeros after them.
template <class T> inline floats some(const T* from, int64_t left) {
  if (left >= LANES) return wide(from);
  T part[LANES] = {};
  std::memcpy(part, from, left * sizeof(T));
  return wide(part);
}

// v with the lanes from `left` on set to `rest`.
inline floats filled(const floats& v, int64_t left, float rest) {
  if (left >= LANES) return v;
  float part[LANES];
  store(v, part);
  for (int64_t k = left; k < LANES; k++) part[k] = rest;
  return wide(part);
}

inline void store_some(const floats& v, float* to, int64_t left) {
  std::memcpy(to, &v, (left < LANES ? left : LANES) * sizeof(float));
}

inline void narrow(float v, float* to) { *to = v; }
inline void narrow(float v, bfloat* to) {  // rounds to the nearest, ties to even
  const uint32_t raw = bits<uint32_t>(v);
  to->bits = v != v ? 0x7fc0 : (raw + 0x7fff + ((raw >> 16) & 1)) >> 16;
}

#if defined(PAIRS) && defined(__aarch64__)
inline void narrow(const floats& v, bfloat* to) { store(vcvt_bf16_f32((float32x4_t)v), to); }
#elif defined(PAIRS)
inline void narrow(const floats& v, bfloat* to) { store(_mm512_cvtneps_pbh((__m512)v), to); }
#endif

// The sum of all lanes, pairwise. By value, since GCC keeps a vector whose address is taken in memory.
template <class V> inline float sum(V v) {
  typedef float half __attribute__((vector_size(sizeof(V) / 2)));
  struct Two { half a, b; };
  const Two two = bits<Two>(v);
  return sum(two.a + two.b);
}
template <> inline float sum(four v) { return (v[0] + v[2]) + (v[1] + v[3]); }

// Lane i is the sum of v[i]'s lanes, for i below N; 0 in the others. The order of a sum doesn't depend on N.
template <class V, int N> inline V sums(V (&v)[N]) {
  static_assert(N <= LANES, "one lane each");
  UNROLLED for (int left = N, n = LANES / 2; n > 0; n /= 2, left = (left + 1) / 2)
    UNROLLED for (int i = 0; i < (left + 1) / 2; i++) {
      const V a = v[2 * i], b = 2 * i + 1 < left ? v[2 * i + 1] : V{};
#define HALVES(...) __builtin_shufflevector(a, b, __VA_ARGS__)
#if defined(__AVX512F__)
      v[i] = HALVES(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
             HALVES(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif defined(__AVX2__)
      v[i] = HALVES(0, 2, 4, 6, 8, 10, 12, 14) + HALVES(1, 3, 5, 7, 9, 11, 13, 15);
#else
      v[i] = HALVES(0, 2, 4, 6) + HALVES(1, 3, 5, 7);
#endif
#undef HALVES
    }
  return v[0];
}

// exp(x) with an error of at most two units in the last place; 0 for x below -87. x must be at most 88.
// Polynomial: S. Moshier, Cephes, expf.
inline floats exp(const floats& x) {
  const floats z = x * 1.44269504f;
  const ints n = __builtin_convertvector(z + (z > 0.f ? all(.5f) : all(-.5f)), ints);
  const floats whole = floats_of(n);
  const floats f = fused(whole, all(2.12194440e-4f), fused(whole, all(-0.693359375f), x));
  floats p = fused(f, all(1.9875691500e-4f), all(1.3981999507e-3f));
  p = fused(p, f, all(8.3334519073e-3f));
  p = fused(p, f, all(4.1665795894e-2f));
  p = fused(p, f, all(1.6666665459e-1f));
  p = fused(p, f, all(5.0000001201e-1f));
  p = fused(p, f * f, f + 1.f);
  return x < -87.f ? floats{} : p * bits<floats>((n + 127) << 23);
}
