// Products of eight-bit matrices by an instruction that adds four products of bytes to each lane (VNNI, or ARM's
// sdot). x is converted to integers of 16 bits, split into two halves of eight. Sums of integers are exact, so
// results have the same bits as those of tiles8.h.
#pragma once

#include <algorithm>
#include <vector>

#include "matrix.h"

#if defined(QUADS)

constexpr int64_t LINE = 4 * LANES;   // bytes of a register
constexpr int64_t MOST_QUADS = 6;     // the most rows of x whose sums are kept in registers
constexpr int64_t QUAD_STEP = 12;     // rows of a matrix that stay in L1 for all rows of x
constexpr int64_t QUAD_ROWS = 48;     // rows of x that stay in the caches together with a part of the matrix

typedef int8_t line __attribute__((vector_size(LINE)));

#if defined(__AVX512VNNI__)
// The instruction takes a matrix's bytes as 0 to 255, so OFFSET is added to each; Quads::shifts corrects the sums.
constexpr int32_t OFFSET = 128;
inline line offset(const line& w) { return w ^ (int8_t)-OFFSET; }
// Adds to each lane's sum four products. In assembly: with the intrinsic GCC copies the sums, and runs out of
// registers.
inline void add_quads(ints& sum, const line& w, const line& x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}
inline ints rounded(const floats& v) { return (ints)_mm512_cvtps_epi32((__m512)v); }
inline bytes bytes_of(const ints& v) { return bits<bytes>(_mm512_cvtepi32_epi8((__m512i)v)); }
#else
constexpr int32_t OFFSET = 0;
inline line offset(const line& w) { return w; }
inline void add_quads(ints& sum, const line& w, const line& x) {
  sum = (ints)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)x);
}
inline ints rounded(const floats& v) { return (ints)vcvtnq_s32_f32((float32x4_t)v); }
inline bytes bytes_of(const ints& v) { return __builtin_convertvector(v, bytes); }
#endif

inline int64_t whole_lines(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

// Converts a row of x [columns] to integers of 16 bits; calls put(column, upper halves, lower halves) for each
// LANES columns. Returns the row's scale, which isn't finite if a value isn't.
template <class Put> inline float halve(const float* x, int64_t columns, Put put) {
  constexpr float MOST = 127 * 256;
  floats largest = {}, rest = {};
  for (int64_t k = 0; k < columns; k += LANES) {
    const floats v = wide(x + k);
    const floats size = v < 0.f ? -v : v;
    largest = largest > size ? largest : size;
    rest += v - v;
  }
  float most = largest[0];
  for (int64_t i = 1; i < LANES; i++) most = std::max(most, largest[i]);
  const floats times = all(most > 0.f ? MOST / most : 0.f);
  for (int64_t k = 0; k < columns; k += LANES) {
    const ints v = rounded(wide(x + k) * times), high = (v + 128) >> 8;
    put(k, bytes_of(high), bytes_of(v - (high << 8)));
  }
  return most / MOST + sum(rest);
}

// The converted rows of x: each row's scale, OFFSET times the sums of its upper and of its lower halves, and these
// halves, [n, 2, bytes].
struct Quads {
  const float* scales;
  const int32_t* shifts;
  const int8_t* x;
  int64_t bytes;

  Quads(const void* entry, int64_t n, int64_t columns)
      : scales((const float*)entry), shifts((const int32_t*)(scales + whole_lines(n))),
        x((const int8_t*)(shifts + 2 * whole_lines(n))), bytes(whole_lines(columns)) {}
  Quads from(int64_t row) const {
    Quads rows = *this;
    rows.scales += row, rows.shifts += 2 * row, rows.x += 2 * row * bytes;
    return rows;
  }
};

inline const void* quartered(const float* x, int64_t n, int64_t columns, std::vector<bfloat>& room) {
  const int64_t size = 12 * whole_lines(n) + 2 * n * whole_lines(columns);
  room.assign((size + LINE) / 2, bfloat{});
  char* start = (char*)room.data();
  start += -(uintptr_t)start % LINE;  // aligned: a load from two cache lines takes twice as long
  const Quads to(start, n, columns);
  for (int64_t m = 0; m < n; m++) {
    int8_t* halves = (int8_t*)to.x + 2 * m * to.bytes;
    ints sums[2] = {};
    ((float*)to.scales)[m] = halve(x + m * columns, columns, [&](int64_t k, bytes upper, bytes lower) {
      store(upper, halves + k), store(lower, halves + to.bytes + k);
      sums[0] += ints_of(upper), sums[1] += ints_of(lower);
    });
    for (int64_t half = 0; half < 2; half++) {
      int32_t whole = 0;
      for (int64_t i = 0; i < LANES; i++) whole += sums[half][i];
      ((int32_t*)to.shifts)[2 * m + half] = OFFSET * whole;
    }
  }
  return start;
}

// R rows of a matrix times M rows of x.
template <int R, int M>
inline void quad_tile(const Matrix& w, int64_t row, const Quads& x, float* out, int64_t stride) {
  const int8_t* values = (const int8_t*)w.values + row * w.columns;
  ints added[M][2][R];
  UNROLLED for (int m = 0; m < M; m++)
    UNROLLED for (int half = 0; half < 2; half++)
      UNROLLED for (int r = 0; r < R; r++) added[m][half][r] = ints{};
  for (int64_t k = 0; k < w.columns; k += LINE) {
    line parts[R];
    UNROLLED for (int r = 0; r < R; r++) {
      const int8_t* from = values + r * w.columns + k;
      fetch(from);
      parts[r] = offset(load<line>(from));
    }
    UNROLLED for (int m = 0; m < M; m++)
      UNROLLED for (int half = 0; half < 2; half++) {
        const line v = load<line>(x.x + (2 * m + half) * x.bytes + k);
        UNROLLED for (int r = 0; r < R; r++) add_quads(added[m][half][r], parts[r], v);
      }
  }
  UNROLLED for (int m = 0; m < M; m++) {
    ints part[2][R];  // a copy: GCC would keep sums whose address is taken in memory
    UNROLLED for (int i = 0; i < 2 * R; i++) part[i / R][i % R] = added[m][i / R][i % R];
    const ints high = sums(part[0]), low = sums(part[1]);
    UNROLLED for (int r = 0; r < R; r++) {
      const float upper = high[r] - x.shifts[2 * m], lower = low[r] - x.shifts[2 * m + 1];
      const float found = std::fma(upper, 256.f, lower) * x.scales[m];
      out[m * stride + r] = std::fma(found, w.scales[row + r], w.bias ? w.bias[row + r] : 0.f);
    }
  }
}

template <int M>
inline void quad_strip(int64_t m, const Matrix& w, int64_t row, int64_t end, const Quads& x, float* out,
                       int64_t stride) {
  if constexpr (M > 1)
    if (m < M) return quad_strip<M - 1>(m, w, row, end, x, out, stride);
  constexpr int TILE = M <= 3 ? 4 : M == 4 ? 3 : 2;
  for (; row + TILE <= end; row += TILE, out += TILE) quad_tile<TILE, M>(w, row, x, out, stride);
  for (; row < end; row++, out++) quad_tile<1, M>(w, row, x, out, stride);
}

// As `multiply`, for an eight-bit matrix; x must come from `quartered`. Memory must be readable for the length
// of a register behind the matrix's values.
inline void quads(const Matrix& w, int64_t row, int64_t end, const void* entry, int64_t n, float* out,
                  int64_t stride) {
  const Quads x(entry, n, w.columns);
  for (int64_t first = 0; first < n; first += QUAD_ROWS) {
    const int64_t stop = std::min(n, first + QUAD_ROWS);
    for (int64_t r = row; r < end; r += QUAD_STEP)
      for (int64_t done = first, parts = (stop - first + MOST_QUADS - 1) / MOST_QUADS; done < stop; parts--) {
        const int64_t m = (stop - done + parts - 1) / parts;
        quad_strip<MOST_QUADS>(m, w, r, std::min(end, r + QUAD_STEP), x.from(done),
                               out + done * stride + r - row, stride);
        done += m;
      }
  }
}
#endif
