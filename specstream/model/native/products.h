// Products of a few rows of x and a constant matrix. The matrix is read in order, and only once for few rows,
// because memory bandwidth limits such a product.
//
// Sums are float32, lane by lane in the order of the columns, so a row's result doesn't depend on the number of
// rows. If the CPU multiplies pairs of bfloat16 and the matrix isn't float32, both factors are rounded to
// bfloat16, as in torch's products; otherwise x is float32. Eight-bit matrices by VNNI or sdot: quads.h. CPUs with a
// matrix unit: tiles.h.
#pragma once

#include <vector>

#include "matrix.h"
#include "tiles8.h"

// R rows of a matrix times M rows of x, to out[m * stride + r].
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

// With many wide registers (AVX-512) more rows of x share one load of the matrix, and three of its rows are
// multiplied at once if four don't fit.
constexpr bool MANY = LANES == 16;
constexpr int64_t MOST = MANY ? 12 : 6;  // the most rows of x whose sums are kept in registers
constexpr int64_t MOST_LONG = 6;         // the same for rows of more than LONG columns, which must stay in L1
constexpr int64_t LONG = 1024;
constexpr int64_t STEP = MANY ? 12 : 8;  // rows of a matrix that stay in L1 for all rows of x
#if defined(TILES)
constexpr int64_t SHARE = 2 * SIDE;  // a thread takes rows of a matrix in multiples of this
#else
constexpr int64_t SHARE = STEP;
#endif
constexpr int64_t FEW = 48;  // rows of x that stay in the caches together with a part of the matrix

template <class W, int M>
inline void strip(const Matrix& w, int64_t row, int64_t end, const Entry<W>* x, float* out,
                  int64_t stride) {
  constexpr int FIT = (REGISTERS - 1) / (M + Rows<W>::TAKEN);
  constexpr int TILE = FIT >= 4 ? 4 : MANY ? FIT : 2;
  for (; row + TILE <= end; row += TILE, out += TILE) tile<W, TILE, M>(w, row, x, out, stride);
  for (; row < end; row++, out++) tile<W, 1, M>(w, row, x, out, stride);
}

template <class W, int M>
inline void any_strip(int64_t m, const Matrix& w, int64_t row, int64_t end, const Entry<W>* x,
                      float* out, int64_t stride) {
  if constexpr (M > 1)
    if (m < M) return any_strip<W, M - 1>(m, w, row, end, x, out, stride);
  strip<W, M>(w, row, end, x, out, stride);
}

// Products with n rows of x, which are few: STEP rows of the matrix stay in L1 for all of them.
template <class W>
void strips(const Matrix& w, int64_t row, int64_t end, const Entry<W>* x, int64_t n, float* out,
            int64_t stride) {
  for (; row < end; row += STEP, out += STEP) {
    const int64_t stop = row + STEP < end ? row + STEP : end;
    const int64_t most = w.columns <= LONG ? MOST : MOST_LONG;
    for (int64_t done = 0, parts = (n + most - 1) / most; done < n; parts--) {
      const int64_t m = (n - done + parts - 1) / parts;
      const Entry<W>* from = x + done * w.columns;
      float* to = out + done * stride;
      any_strip<W, MOST>(m, w, row, stop, from, to, stride);
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

// Whether a product is computed by quads.h. On CPUs with a matrix unit only for few rows of x: the unit takes as
// long for one row as for sixteen.
inline bool by_quads(const Matrix& w, int64_t n) {
#if defined(TILES)
  return w.kind == INT8 && (n <= MOST_QUADS || !tiles_allowed());
#elif defined(QUADS)
  return w.kind == INT8;
#else
  return false;
#endif
}

// Rows [row, end) of a matrix times x [n, columns]: for row m of x, one float per row of the matrix from
// out[m * stride] on. x must come from `entry_of`.
inline void multiply(const Matrix& w, int64_t row, int64_t end, const void* x, int64_t n, float* out,
                     int64_t stride) {
#if defined(QUADS)
  if (by_quads(w, n)) return quads(w, row, end, x, n, out, stride);
#endif
#if defined(TILES)
  if (w.kind != FLOAT32 && tiles_allowed()) {
    if (w.kind == INT8) return byte_tiles(w, row, end, x, n, out, stride);
    if (w.kind == INT4) return tiles<octets>(w, row, end, (const bfloat*)x, n, out, stride);
    return tiles<bfloat>(w, row, end, (const bfloat*)x, n, out, stride);
  }
#endif
  switch (w.kind) {
    case FLOAT32: blocks<float>(w, row, end, x, n, out, stride); break;
    case BFLOAT16: blocks<bfloat>(w, row, end, x, n, out, stride); break;
    case INT8: blocks<bytes>(w, row, end, x, n, out, stride); break;
    default: blocks<octets>(w, row, end, x, n, out, stride);
  }
}

// x [n, columns] in the form that products with w read: x itself, or converted into `room`.
inline const void* entry_of(const Matrix& w, const float* x, int64_t n, std::vector<bfloat>& room) {
#if defined(QUADS)
  if (by_quads(w, n)) return quartered(x, n, w.columns, room);
#endif
#if defined(PAIRS)
  if (w.kind != FLOAT32) {
#if defined(TILES)
    if (tiles_allowed())
      return w.kind == INT8 ? halved(x, n, w.columns, room) : paired(x, n, w.columns, room);
#endif
    room.resize(n * w.columns);
    for (int64_t k = 0; k < n * w.columns; k += LANES) narrow(wide(x + k), &room[k]);
    return room.data();
  }
#endif
  return x;
}
