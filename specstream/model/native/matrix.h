// A constant matrix in memory, and how its values are loaded and multiplied.
#pragma once

#include <type_traits>

#include "lanes.h"

enum Kind : int32_t { FLOAT32, BFLOAT16, INT8, INT4 };

struct Matrix {  // [rows, columns], columns in multiples of 32
  const void* values;
  const float* scales;  // INT8: [rows]; INT4: [rows, columns / 32, 2], a scale and the least value
  const float* bias;    // [rows] or null
  int64_t rows, columns;
  int32_t kind;
};

constexpr int64_t FAR = 8192, NEAR = 256;  // bytes ahead that are prefetched into the L2 and the L1 cache
constexpr int64_t GROUP = 32;  // columns between two prefetches; columns of a group of INT4

inline void fetch(const void* at) {
  __builtin_prefetch((const char*)at + FAR, 0, 2);
  __builtin_prefetch((const char*)at + NEAR, 0, 3);
}

// How values are multiplied, WIDTH columns at once. entry(x) loads these columns of a row of x. part(of) makes
// those of a matrix, where of(i) gives the i-th LANES of them. added(w, x, sum) adds their products to the sums.
struct Floats {
  typedef float Entry;
  typedef floats Part;
  static constexpr int64_t WIDTH = LANES;
  static floats entry(const float* x) { return wide(x); }
  template <class Of> static floats part(const Of& of) { return of(0); }
  static floats added(floats w, floats x, floats sum) { return fused(w, x, sum); }
};

#if defined(PAIRS)
struct Narrow {  // both factors are bfloat16; the products of two neighbours go to one lane
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

// A view of a matrix from one row on, by the type of its values. part(row, column, i) loads the i-th WIDTH
// columns of the group that begins at `column`, which takes about TAKEN registers.
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

template <> struct Rows<octets> {  // INT4: 16 bytes hold 32 columns, the first 16 in the low four bits
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
      const int64_t first = i * Products::WIDTH + k * LANES;  // column within the group
      const words both = words_of(load<octets>(values + group * 16 + first % 16));
      const floats codes = floats_of((ints)(first < 16 ? both & 15 : both >> 4));
      return fused(codes, all(groups[2 * group]), all(groups[2 * group + 1]));
    });
  }
  float scale(int64_t) const { return 1.f; }
};

template <class W> using Entry = typename Rows<W>::Products::Entry;
