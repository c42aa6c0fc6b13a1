// Rows times a matrix, which is read in order, and once where the rows are few: such a product waits for
// memory.
//
// Sums are float32, lane by lane in the order of the columns, so a row's result doesn't depend on how
// many rows there are.
#pragma once

#include "lanes.h"

enum Kind : int32_t { FLOAT32, BFLOAT16, INT8, INT4 };

struct Matrix {  // [rows, columns], columns in multiples of 32
  const void* values;
  const float* scales;  // INT8: [rows]; INT4: [rows, columns / 32, 2], a scale and what 0 stands for
  const float* bias;    // [rows] or null
  int64_t rows, columns;
  int32_t kind;
};

constexpr int64_t FAR = 8192, NEAR = 512;  // bytes ahead that the second and the first cache fetch
constexpr int64_t GROUP = 32, PARTS = GROUP / LANES;  // columns between two fetches

inline void fetch(const void* at) {
  __builtin_prefetch((const char*)at + FAR, 0, 2);
  __builtin_prefetch((const char*)at + NEAR, 0, 3);
}

// part(row, column, i): the i-th LANES columns of a group that begins at `column`; it takes about TAKEN
// registers.
template <class W> struct Rows {  // FLOAT32 and BFLOAT16
  static constexpr int TAKEN = 1;
  const W* values;
  int64_t columns;

  Rows(const Matrix& m, int64_t row)
      : values((const W*)m.values + row * m.columns), columns(m.columns) {}
  void ahead(int64_t row, int64_t column) const { fetch(values + row * columns + column); }
  floats part(int64_t row, int64_t column, int64_t i) const {
    return wide(values + row * columns + column + i * LANES);
  }
  float scale(int64_t) const { return 1.f; }
};

template <> struct Rows<bytes> {
  static constexpr int TAKEN = 1;
  const int8_t* values;
  const float* scales;
  int64_t columns;

  Rows(const Matrix& m, int64_t row)
      : values((const int8_t*)m.values + row * m.columns),
        scales(m.scales + row),
        columns(m.columns) {}
  void ahead(int64_t row, int64_t column) const { fetch(values + row * columns + column); }
  floats part(int64_t row, int64_t column, int64_t i) const {
    return floats_of(ints_of(load<bytes>(values + row * columns + column + i * LANES)));
  }
  float scale(int64_t row) const { return scales[row]; }
};

template <> struct Rows<octets> {  // INT4: 16 bytes hold 32 columns, the first in their low halves
  static constexpr int TAKEN = 5;
  const uint8_t* values;
  const float* groups;
  int64_t columns;

  Rows(const Matrix& m, int64_t row)
      : values((const uint8_t*)m.values + row * m.columns / 2),
        groups(m.scales + row * m.columns / 16),
        columns(m.columns) {}
  void ahead(int64_t row, int64_t column) const {
    fetch(values + (row * columns + column) / 2);
    fetch(groups + (row * columns + column) / 16);
  }
  floats part(int64_t row, int64_t column, int64_t i) const {
    const int64_t group = (row * columns + column) / GROUP, half = PARTS / 2;
    const words both = words_of(load<octets>(values + group * 16 + i % half * LANES));
    const floats codes = floats_of((ints)(i < half ? both & 15 : both >> 4));
    return fused(codes, all(groups[2 * group]), all(groups[2 * group + 1]));
  }
  float scale(int64_t) const { return 1.f; }
};

// R rows of a matrix times M rows of x; out[m * stride + r].
template <class W, int R, int M>
inline void tile(const Matrix& w, int64_t row, const float* x, float* out, int64_t stride) {
  const Rows<W> rows(w, row);
  floats sums[M][R];
  UNROLLED for (int m = 0; m < M; m++)
    UNROLLED for (int r = 0; r < R; r++) sums[m][r] = floats{};
  for (int64_t k = 0; k < w.columns; k += GROUP) {
    for (int r = 0; r < R; r++) rows.ahead(r, k);
    UNROLLED for (int i = 0; i < PARTS; i++) {
      floats parts[R];
      UNROLLED for (int r = 0; r < R; r++) parts[r] = rows.part(r, k, i);
      UNROLLED for (int m = 0; m < M; m++) {
        const floats v = wide(x + m * w.columns + k + i * LANES);
        UNROLLED for (int r = 0; r < R; r++) sums[m][r] = fused(parts[r], v, sums[m][r]);
      }
    }
  }
  UNROLLED for (int m = 0; m < M; m++)
    UNROLLED for (int r = 0; r < R; r++)
      out[m * stride + r] = std::fma(sum(sums[m][r]), rows.scale(r), w.bias ? w.bias[row + r] : 0.f);
}

constexpr int64_t MOST = 6;  // rows of x whose sums are kept in registers
constexpr int64_t STEP = 8;  // rows of a matrix that are multiplied behind one another
constexpr int64_t FEW = 8 * MOST;  // rows of x that stay in the caches beside a part of the matrix

template <class W, int M>
inline void strip(const Matrix& w, int64_t row, int64_t end, const float* x, float* out,
                  int64_t stride) {
  constexpr int TILE = 4 * (M + Rows<W>::TAKEN) < REGISTERS ? 4 : 2;
  for (; row + TILE <= end; row += TILE, out += TILE) tile<W, TILE, M>(w, row, x, out, stride);
  for (; row < end; row++, out++) tile<W, 1, M>(w, row, x, out, stride);
}

// STEP rows of the matrix stay in the nearest cache for all n rows of x, which are few.
template <class W>
void strips(const Matrix& w, int64_t row, int64_t end, const float* x, int64_t n, float* out,
            int64_t stride) {
  for (; row < end; row += STEP, out += STEP) {
    const int64_t stop = row + STEP < end ? row + STEP : end;
    for (int64_t done = 0, parts = (n + MOST - 1) / MOST; done < n; parts--) {
      const int64_t m = (n - done + parts - 1) / parts;
      const float* from = x + done * w.columns;
      float* to = out + done * stride;
      switch (m) {
        case 1: strip<W, 1>(w, row, stop, from, to, stride); break;
        case 2: strip<W, 2>(w, row, stop, from, to, stride); break;
        case 3: strip<W, 3>(w, row, stop, from, to, stride); break;
        case 4: strip<W, 4>(w, row, stop, from, to, stride); break;
        case 5: strip<W, 5>(w, row, stop, from, to, stride); break;
        default: strip<W, MOST>(w, row, stop, from, to, stride);
      }
      done += m;
    }
  }
}

// Rows [row, end) of a matrix times x [n, columns]: out[m * stride] and on, one float per row.
inline void multiply(const Matrix& w, int64_t row, int64_t end, const float* x, int64_t n,
                     float* out, int64_t stride) {
  for (; n > 0; n -= FEW, x += FEW * w.columns, out += FEW * stride) {
    const int64_t few = n < FEW ? n : FEW;
    switch (w.kind) {
      case FLOAT32: strips<float>(w, row, end, x, few, out, stride); break;
      case BFLOAT16: strips<bfloat>(w, row, end, x, few, out, stride); break;
      case INT8: strips<bytes>(w, row, end, x, few, out, stride); break;
      default: strips<octets>(w, row, end, x, few, out, stride);
    }
  }
}
