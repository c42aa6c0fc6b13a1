// Attention of one token and head to the rows of its sequence.
#pragma once

#include <vector>

#include "lanes.h"

struct Sequence {         // whose new rows are adjacent in a pass, in order
  char* kv;               // [layers, 2, kv_heads, capacity, head_dim], contiguous
  int64_t capacity;
  int64_t before, count;  // rows in the cache; new rows
  int64_t visible;        // first rows that all new rows see
  const uint8_t* seen;    // [count, before + count - visible]: the others; null: a chain
};

// What a token's query is compared with, and what is mixed: heads of one sequence and layer.
template <class T> struct Memory {
  const T *keys, *values;  // [capacity, dim]
  int64_t dim;
};

// One head's output [dim] for new row `token` of a sequence. Rows that it doesn't see add nothing, not
// even rounding: a node of a tree gets the very sums that it would get in a chain.
template <class T>
void attend(const Sequence& s, int64_t token, const float* query, const Memory<T>& memory,
            std::vector<float>& scores, float* out) {
  const int64_t dim = memory.dim, rows = s.before + (s.seen ? s.count : token + 1);
  const int64_t padded = (rows + LANES - 1) / LANES * LANES, others = s.before + s.count - s.visible;
  if ((int64_t)scores.size() < padded) scores.resize(2 * padded);
  const float scale = 1.f / std::sqrt((float)dim);
  float best = -INFINITY;
  for (int64_t row = 0; row < padded; row++) {
    const bool hidden = s.seen && row >= s.visible && row < rows &&
                        !s.seen[token * others + row - s.visible];
    if (hidden || row >= rows) {
      scores[row] = -INFINITY;
      continue;
    }
    floats dot = {};
    for (int64_t k = 0; k < dim; k += LANES)
      dot += some(query + k, dim - k) * some(memory.keys + row * dim + k, dim - k);
    scores[row] = sum(dot) * scale;
    best = scores[row] > best ? scores[row] : best;
  }
  for (int64_t row = 0; row < padded; row += LANES) store(exp(wide(&scores[row]) - best), &scores[row]);
  float total = 0;
  for (int64_t row = 0; row < rows; row++) total += scores[row];
  for (int64_t k = 0; k < dim; k += LANES) {
    floats mixed = {};
    for (int64_t row = 0; row < rows; row++)
      if (scores[row] > 0) mixed += scores[row] * some(memory.values + row * dim + k, dim - k);
    store_some(mixed / total, out + k, dim - k);
  }
}
