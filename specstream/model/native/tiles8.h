// Products of eight-bit matrices on the matrix unit: x is converted to integers as in quads.h, and the matrix is
// loaded into the unit without conversion.
#pragma once

#include "quads.h"
#include "tiles.h"

#if defined(TILES)

constexpr int64_t BYTES = 4 * SIDE;  // columns of a tile of a matrix

template <int SUMS, int MATRIX, int X> inline void add_byte_products() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(MATRIX), "i"(X));
}

inline int64_t room_of_scales(int64_t n) { return (n + SIDE - 1) / SIDE * SIDE; }

// Converts x [n, columns] to integers of 16 bits: a scale for each row, then for each SIDE rows the upper halves
// and the lower halves, each [columns / 4, rows, 4].
inline const void* halved(const float* x, int64_t n, int64_t columns, std::vector<bfloat>& room) {
  const int64_t whole = whole_lines(columns), before = room_of_scales(n);
  room.assign(2 * before + n * whole, bfloat{});
  float* scales = (float*)room.data();
  int8_t* to = (int8_t*)(scales + before);
  for (int64_t m = 0; m < n; m++) {
    const int64_t first = m / SIDE * SIDE, among = std::min(n - first, SIDE);
    int8_t* at = to + first * 2 * whole + m % SIDE * 4;
    scales[m] = halve(x + m * columns, columns, [&](int64_t k, bytes upper, bytes lower) {
      const bytes halves[2] = {upper, lower};
      for (int64_t i = 0; i < LANES; i += 4)
        for (int64_t half = 0; half < 2; half++)
          std::memcpy(at + (half * whole + k + i) * among, (const char*)(halves + half) + i, 4);
    });
  }
  return room.data();
}

// `count` rows of a matrix, for each of R, times n rows of x, at most SIDE.
template <int... R>
inline void tiled_bytes(std::integer_sequence<int, R...>, const Matrix& w, int64_t row, int64_t count,
                        const int8_t* x, const float* scales, int64_t n, float* out, int64_t stride) {
  const int8_t* values = (const int8_t*)w.values + row * w.columns;
  const int8_t* lower = x + n * whole_lines(w.columns);
  (clear<2 * R>(), ...);
  (clear<2 * R + 1>(), ...);
  auto load = [&](auto number, int64_t k) {
    constexpr int r = decltype(number)::value;
    fill<4 + r>(values + r * SIDE * w.columns + k, w.columns);
    add_byte_products<2 * r, 4 + r, 6>();
    add_byte_products<2 * r + 1, 4 + r, 7>();
  };
  for (int64_t k = 0; k < w.columns; k += BYTES) {
    fill<6>(x + k * n, 4 * n);
    fill<7>(lower + k * n, 4 * n);
    (load(std::integral_constant<int, R>{}, k), ...);
  }
  const __m512i column = (__m512i)tile_column();
  alignas(64) int32_t sums[2][SIDE][SIDE];
  auto finish = [&](int64_t r) {
    const floats bias = w.bias ? some(w.bias + row + r, count) : floats{};
    const floats scale = some(w.scales + row + r, count);
    for (int64_t i = 0; i < n; i++) {
      const floats high = floats_of((ints)_mm512_i32gather_epi32(column, &sums[0][0][i], 4));
      const floats low = floats_of((ints)_mm512_i32gather_epi32(column, &sums[1][0][i], 4));
      const floats found = fused(high, all(256.f), low) * scales[i];
      store_some(fused(found, scale, bias), out + i * stride + r, count);
    }
  };
  ((keep<2 * R>(sums[0], BYTES), keep<2 * R + 1>(sums[1], BYTES), finish(R * SIDE)), ...);
}

// As `tiles`; x must come from `halved`. Memory must be readable for a tile's width behind the matrix's values.
inline void byte_tiles(const Matrix& w, int64_t row, int64_t end, const void* entry, int64_t n, float* out,
                       int64_t stride) {
  const float* scales = (const float*)entry;
  const int8_t* x = (const int8_t*)(scales + room_of_scales(n));
  const int64_t whole = whole_lines(w.columns);
  for (int64_t m = 0; m < n; m += SIDE) {
    const int64_t many = std::min(n - m, SIDE);
    float* to = out + m * stride;
    shape_tiles(SIDE, many, many);
    for (int64_t r = row; r < end;) {
      const int64_t left = end - r, count = std::min(left, SIDE);
      if (left >= 2 * SIDE) {
        tiled_bytes(std::integer_sequence<int, 0, 1>{}, w, r, SIDE, x + 2 * m * whole, scales + m, many,
                    to + r - row, stride);
        r += 2 * SIDE;
      } else {
        if (count < SIDE) shape_tiles(count, many, many);
        tiled_bytes(std::integer_sequence<int, 0>{}, w, r, count, x + 2 * m * whole, scales + m, many,
                    to + r - row, stride);
        r += count;
      }
    }
    asm volatile("tilerelease");
  }
}
#endif
