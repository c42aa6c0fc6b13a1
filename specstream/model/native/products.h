// Rows times a matrix, which is read in order, and once where the rows are few: such a product waits for
// memory.
//
// Sums are float32, lane by lane in the order of the columns, so a row's result doesn't depend on how
// many rows there are. Where the CPU multiplies pairs of bfloat16, both factors are rounded to that unless
// the matrix is float32, as in torch's products; elsewhere x is float32.
#pragma once

#include <type_traits>
#include <vector>

#include "lanes.h"

enum Kind : int32_t { FLOAT32, BFLOAT16, INT8, INT4 };

struct Matrix {  // [rows, columns], columns in multiples of 32
  const void* values;
  const float* scales;  // INT8: [rows]; INT4: [rows, columns / 32, 2], a scale and what 0 stands for
  const float* bias;    // [rows] or null
  int64_t rows, columns;
  int32_t kind;
};

constexpr int64_t FAR = 8192, NEAR = 256;  // bytes ahead that the second and the first cache fetch
constexpr int64_t GROUP = 32;  // columns between two fetches

inline void fetch(const void* at) {
  __builtin_prefetch((const char*)at + FAR, 0, 2);
  __builtin_prefetch((const char*)at + NEAR, 0, 3);
}

// How values are multiplied: WIDTH columns at once. entry(x): those of a row of x. part(of): those of a
// matrix, of(i) being the i-th LANES of them. added(w, x, sum): their products, added to each lane's sum.
struct Floats {
  typedef float Entry;
  typedef floats Part;
  static constexpr int64_t WIDTH = LANES;
  static floats entry(const float* x) { return wide(x); }
  template <class Of> static floats part(const Of& of) { return of(0); }
  static floats added(floats w, floats x, floats sum) { return fused(w, x, sum); }
};

#if defined(PAIRS)
struct Narrow {  // both factors in bfloat16, neighbours added up
  typedef bfloat Entry;
  typedef pairs Part;
  static constexpr int64_t WIDTH = 2 * LANES;
  static pairs entry(const bfloat* x) { return load<pairs>(x); }
  template <class Of> static pairs part(const Of& of) { return pairs_of(of(0), of(1)); }
  static floats added(pairs w, pairs x, floats sum) { return fused(w, x, sum); }
};
#else
typedef Floats Narrow;
#endif

// A thread's view of a matrix, by what a value is. part(row, column, i): the i-th WIDTH columns of a group
// that begins at `column`; it takes about TAKEN registers.
template <class W> struct Rows {  // FLOAT32 and BFLOAT16
  typedef std::conditional_t<std::is_same_v<W, float>, Floats, Narrow> Products;
  static constexpr int TAKEN = 1;
  const W* values;
  int64_t columns;

  Rows(const Matrix& m, int64_t row)
      : values((const W*)m.values + row * m.columns), columns(m.columns) {}
  void ahead(int64_t row, int64_t column) const { fetch(values + row * columns + column); }
  auto part(int64_t row, int64_t column, int64_t i) const {
    const W* from = values + row * columns + column + i * Products::WIDTH;
    if constexpr (std::is_same_v<W, typename Products::Entry>)
      return Products::entry(from);
    else
      return wide(from);
  }
  float scale(int64_t) const { return 1.f; }
};

template <> struct Rows<bytes> {
  typedef Narrow Products;
  static constexpr int TAKEN = 1;
  const int8_t* values;
  const float* scales;
  int64_t columns;

  Rows(const Matrix& m, int64_t row)
      : values((const int8_t*)m.values + row * m.columns),
        scales(m.scales + row),
        columns(m.columns) {}
  void ahead(int64_t row, int64_t column) const { fetch(values + row * columns + column); }
  auto part(int64_t row, int64_t column, int64_t i) const {
    const int8_t* from = values + row * columns + column + i * Products::WIDTH;
    return Products::part(
        [&](int64_t k) { return floats_of(ints_of(load<bytes>(from + k * LANES))); });
  }
  float scale(int64_t row) const { return scales[row]; }
};

template <> struct Rows<octets> {  // INT4: 16 bytes hold 32 columns, the first in their low halves
  typedef Narrow Products;
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
  auto part(int64_t row, int64_t column, int64_t i) const {
    const int64_t group = (row * columns + column) / GROUP;
    return Products::part([&](int64_t k) {
      const int64_t first = i * Products::WIDTH + k * LANES;  // of the group's columns
      const words both = words_of(load<octets>(values + group * 16 + first % 16));
      const floats codes = floats_of((ints)(first < 16 ? both & 15 : both >> 4));
      return fused(codes, all(groups[2 * group]), all(groups[2 * group + 1]));
    });
  }
  float scale(int64_t) const { return 1.f; }
};

template <class W> using Entry = typename Rows<W>::Products::Entry;

// R rows of a matrix times M rows of x; out[m * stride + r].
template <class W, int R, int M>
inline void tile(const Matrix& w, int64_t row, const Entry<W>* x, float* out, int64_t stride) {
  typedef typename Rows<W>::Products Products;
  const Rows<W> rows(w, row);
  floats sums[M][R];
  UNROLLED for (int m = 0; m < M; m++)
    UNROLLED for (int r = 0; r < R; r++) sums[m][r] = floats{};
  for (int64_t k = 0; k < w.columns; k += GROUP) {
    for (int r = 0; r < R; r++) rows.ahead(r, k);
    UNROLLED for (int i = 0; i < GROUP / Products::WIDTH; i++) {
      typename Products::Part parts[R];
      UNROLLED for (int r = 0; r < R; r++) parts[r] = rows.part(r, k, i);
      UNROLLED for (int m = 0; m < M; m++) {
        auto v = Products::entry(x + m * w.columns + k + i * Products::WIDTH);
        held(v);
        UNROLLED for (int r = 0; r < R; r++) sums[m][r] = Products::added(parts[r], v, sums[m][r]);
      }
    }
  }
  float found[(M * R + LANES - 1) / LANES * LANES];
  UNROLLED for (int first = 0; first < M * R; first += LANES) {
    floats part[LANES];
    UNROLLED for (int i = 0; i < LANES; i++)
      part[i] = first + i < M * R ? sums[(first + i) / R][(first + i) % R] : floats{};
    store(::sums(part), found + first);
  }
  UNROLLED for (int m = 0; m < M; m++)
    UNROLLED for (int r = 0; r < R; r++)
      out[m * stride + r] = std::fma(found[m * R + r], rows.scale(r), w.bias ? w.bias[row + r] : 0.f);
}

constexpr int64_t MOST = 6;  // rows of x whose sums are kept in registers
constexpr int64_t STEP = 8;  // rows of a matrix that are multiplied behind one another
constexpr int64_t FEW = 8 * MOST;  // rows of x that stay in the caches beside a part of the matrix

template <class W, int M>
inline void strip(const Matrix& w, int64_t row, int64_t end, const Entry<W>* x, float* out,
                  int64_t stride) {
  constexpr int TILE = 4 * (M + Rows<W>::TAKEN) < REGISTERS ? 4 : 2;
  for (; row + TILE <= end; row += TILE, out += TILE) tile<W, TILE, M>(w, row, x, out, stride);
  for (; row < end; row++, out++) tile<W, 1, M>(w, row, x, out, stride);
}

// STEP rows of the matrix stay in the nearest cache for all n rows of x, which are few.
template <class W>
void strips(const Matrix& w, int64_t row, int64_t end, const Entry<W>* x, int64_t n, float* out,
            int64_t stride) {
  for (; row < end; row += STEP, out += STEP) {
    const int64_t stop = row + STEP < end ? row + STEP : end;
    for (int64_t done = 0, parts = (n + MOST - 1) / MOST; done < n; parts--) {
      const int64_t m = (n - done + parts - 1) / parts;
      const Entry<W>* from = x + done * w.columns;
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

template <class W>
void blocks(const Matrix& w, int64_t row, int64_t end, const void* entry, int64_t n, float* out,
            int64_t stride) {
  const Entry<W>* x = (const Entry<W>*)entry;
  for (; n > 0; n -= FEW, x += FEW * w.columns, out += FEW * stride)
    strips<W>(w, row, end, x, n < FEW ? n : FEW, out, stride);
}

// Rows [row, end) of a matrix times x [n, columns]: out[m * stride] and on, one float per row. x is what
// `entry_of` gives.
inline void multiply(const Matrix& w, int64_t row, int64_t end, const void* x, int64_t n, float* out,
                     int64_t stride) {
  switch (w.kind) {
    case FLOAT32: blocks<float>(w, row, end, x, n, out, stride); break;
    case BFLOAT16: blocks<bfloat>(w, row, end, x, n, out, stride); break;
    case INT8: blocks<bytes>(w, row, end, x, n, out, stride); break;
    default: blocks<octets>(w, row, end, x, n, out, stride);
  }
}

// x [n, columns] as products with w read it: itself, or converted into `room`.
inline const void* entry_of(const Matrix& w, const float* x, int64_t n, std::vector<bfloat>& room) {
#if defined(PAIRS)
  if (w.kind != FLOAT32) {
    room.resize(n * w.columns);
    for (int64_t k = 0; k < n * w.columns; k += LANES) narrow(wide(x + k), &room[k]);
    return room.data();
  }
#endif
  return x;
}
