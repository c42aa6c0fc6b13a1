// Products on a CPU's matrix unit (AMX, Intel from 2023 on): 16 rows of a matrix times up to 16 rows of x, 32
// columns at once, so a pass of a dozen tokens takes hardly longer than a pass of one.
//
// Both factors are bfloat16. Sums are float32, and those of a row of x don't depend on the other rows.
#pragma once

#include "matrix.h"

#if defined(TILES)
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

// Whether the operating system lets this process use the unit; a process has to request that once.
inline bool tiles_allowed() {
  constexpr long REQUEST = 0x1023, DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool allowed = syscall(SYS_arch_prctl, REQUEST, DATA) == 0;
  return allowed;
}

constexpr int64_t SIDE = 16;  // rows of a tile

// The unit has eight tiles. With r and m 0 or 1: tile 2 * r + m holds the sums of the r-th SIDE rows of the matrix
// and the m-th SIDE rows of x, tile 4 + r values of the matrix, tile 6 + m values of x. The functions are in
// assembly because GCC's intrinsics take only literals for tiles, not a template's argument.
template <int T> inline void clear() { asm volatile("tilezero %%tmm%c0" ::"i"(T)); }
template <int T> inline void fill(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T> inline void keep(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
}
template <int SUMS, int MATRIX, int X> inline void add_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(MATRIX), "i"(X));
}

// Configures the tiles for `count` rows of a matrix, and for `first` and `second` rows of x (m = 0 and m = 1).
inline void shape_tiles(int64_t count, int64_t first, int64_t second) {
  struct {
    uint8_t palette = 1, start = 0, unused[14] = {};
    uint16_t bytes[16] = {};  // bytes of a tile's row
    uint8_t rows[16] = {};
  } shape;
  for (int i = 0; i < 8; i++) {
    const bool matrix = i == 4 || i == 5;
    const int64_t columns = matrix ? SIDE : i % 2 ? second : first;
    shape.bytes[i] = 4 * columns;
    shape.rows[i] = columns == 0 ? 0 : i < 6 ? count : SIDE;
  }
  asm volatile("ldtilecfg %0" ::"m"(shape));
}

// The address to load a tile of a matrix from: in the matrix, or `room`, if values have to be converted.
template <class W>
inline const bfloat* tile_at(const Rows<W>& rows, int64_t count, int64_t row, int64_t column,
                             bfloat* room) {
  if constexpr (std::is_same_v<W, bfloat>) {
    return rows.values + row * rows.columns + column;
  } else {
    for (int64_t r = 0; r < count; r++) store(rows.part(row + r, column, 0), room + r * GROUP);
    return room;
  }
}

// Offsets of the values of a tile's column from its first one, to transpose sums: a tile of sums has a row for
// each row of the matrix, `out` a column.
inline ints tile_column() {
  constexpr int8_t NUMBERS[SIDE] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return ints_of(load<bytes>(NUMBERS)) * (int32_t)SIDE;
}

// `count` rows of a matrix, for each of R, times n rows of x, at most M * SIDE. The matrix isn't prefetched: with
// 32 of its rows read side by side, prefetching only made products slower.
template <class W, int M, int... R>
inline void tiled(std::integer_sequence<int, R...>, const Matrix& w, int64_t row, int64_t count,
                  const bfloat* x, int64_t n, float* out, int64_t stride) {
  const Rows<W> rows(w, row);
  const int64_t columns = w.columns, first = std::min(n, SIDE), second = n - first;
  const int64_t step = 2 * (std::is_same_v<W, bfloat> ? columns : GROUP);  // bytes between rows
  alignas(64) bfloat room[sizeof...(R)][SIDE * GROUP];
  (clear<2 * R>(), ...);
  if constexpr (M > 1) (clear<2 * R + 1>(), ...);
  auto load = [&](auto number, int64_t k) {
    constexpr int r = decltype(number)::value, at = 4 + r;
    fill<at>(tile_at(rows, count, r * SIDE, k, room[r]), step);
    add_products<2 * r, at, 6>();
    if constexpr (M > 1) add_products<2 * r + 1, at, 7>();
  };
  for (int64_t k = 0; k < columns; k += GROUP) {
    fill<6>(x + k * first, 4 * first);
    if constexpr (M > 1) fill<7>(x + SIDE * columns + k * second, 4 * second);
    (load(std::integral_constant<int, R>{}, k), ...);
  }
  const ints column = tile_column();
  alignas(64) float sums[SIDE][SIDE];
  auto finish = [&](int64_t r, int64_t m, int64_t among) {
    const floats bias = w.bias ? some(w.bias + row + r, count) : floats{};
    for (int64_t i = 0; i < among; i++) {
      const floats found = (floats)_mm512_i32gather_ps((__m512i)column, &sums[0][i], 4);
      store_some(found + bias, out + (m + i) * stride + r, count);
    }
  };
  ((keep<2 * R>(sums, sizeof sums[0]), finish(R * SIDE, 0, first)), ...);
  if constexpr (M > 1)
    ((keep<2 * R + 1>(sums, sizeof sums[0]), finish(R * SIDE, SIDE, second)), ...);
}

template <class W, int M>
inline void tiled_rows(const Matrix& w, int64_t row, int64_t end, const bfloat* x, int64_t n, float* out,
                       int64_t stride) {
  const int64_t first = std::min(n, SIDE);
  shape_tiles(SIDE, first, n - first);
  for (; row + 2 * SIDE <= end; row += 2 * SIDE, out += 2 * SIDE)
    tiled<W, M>(std::integer_sequence<int, 0, 1>{}, w, row, SIDE, x, n, out, stride);
  for (; row < end; row += SIDE, out += SIDE) {
    const int64_t count = std::min(end - row, SIDE);
    if (count < SIDE) shape_tiles(count, first, n - first);
    tiled<W, M>(std::integer_sequence<int, 0>{}, w, row, count, x, n, out, stride);
  }
  asm volatile("tilerelease");
}

// As `blocks`; x must come from `paired`.
template <class W>
void tiles(const Matrix& w, int64_t row, int64_t end, const bfloat* x, int64_t n, float* out,
           int64_t stride) {
  for (int64_t m = 0; m < n; m += 2 * SIDE) {
    const int64_t left = std::min(n - m, 2 * SIDE);
    if (left > SIDE)
      tiled_rows<W, 2>(w, row, end, x + m * w.columns, left, out + m * stride, stride);
    else
      tiled_rows<W, 1>(w, row, end, x + m * w.columns, left, out + m * stride, stride);
  }
}

// Converts x [n, columns] to bfloat16 in the layout of tiles: for each SIDE rows [columns / 2, rows, 2].
inline const void* paired(const float* x, int64_t n, int64_t columns, std::vector<bfloat>& room) {
  std::vector<bfloat> row(columns);
  room.resize(n * columns);
  for (int64_t m = 0; m < n; m++) {
    const int64_t among = std::min(n - m / SIDE * SIDE, SIDE);
    bfloat* at = room.data() + m / SIDE * SIDE * columns + m % SIDE * 2;
    for (int64_t k = 0; k < columns; k += LANES) narrow(wide(x + m * columns + k), &row[k]);
    for (int64_t k = 0; k < columns; k += 2) std::memcpy(at + k * among, &row[k], 2 * sizeof(bfloat));
  }
  return room.data();
}
#endif
