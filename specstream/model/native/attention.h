// Attention of one token, for the heads of queries that share a head of keys and values.
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

// Every sum runs over the rows in their order, and rows that a token doesn't see add exactly nothing: a
// node of a tree gets the very sums that it would get in a chain.
template <class T> class Attention {
 public:
  // out [group, dim] of queries [group, dim], for new row `token` of a sequence; keys and values are
  // [capacity, dim].
  void operator()(const Sequence& s, int64_t token, const float* queries, int64_t group,
                  const T* keys, const T* values, int64_t dim, float* out) {
    rows_ = s.before + (s.seen ? s.count : token + 1);
    dim_ = dim, wide_ = (dim + LANES - 1) / LANES * LANES;
    const int64_t padded = (rows_ + LANES - 1) / LANES * LANES;
    const uint8_t* seen = s.seen ? s.seen + token * (s.before + s.count - s.visible) : nullptr;
    queries_.assign(group * wide_, 0);
    for (int64_t g = 0; g < group; g++)
      std::memcpy(&queries_[g * wide_], queries + g * dim, dim * sizeof(float));
    if ((int64_t)scores_.size() < group * padded) scores_.resize(2 * group * padded);
    compare(s, seen, group, padded, keys);
    for (int64_t g = 0; g < group; g++) weigh(&scores_[g * padded], padded);
    mix(s, seen, group, padded, values, out);
  }

 private:
  static constexpr int64_t BLOCK = 8;  // rows that are widened once for all heads

  static bool hidden(const Sequence& s, const uint8_t* seen, int64_t row) {
    return seen && row >= s.visible && !seen[row - s.visible];
  }

  // Up to BLOCK rows as floats, zeros behind a row's dim and where a row is hidden.
  int64_t widen(const Sequence& s, const uint8_t* seen, const T* from, int64_t first) {
    const int64_t count = rows_ - first < BLOCK ? rows_ - first : BLOCK;
    block_.resize(BLOCK * wide_);
    for (int64_t r = 0; r < count; r++) {
      const bool zero = hidden(s, seen, first + r);
      for (int64_t k = 0; k < wide_; k += LANES)
        store(zero ? floats{} : some(from + (first + r) * dim_ + k, dim_ - k),
              &block_[r * wide_ + k]);
    }
    return count;
  }

  // scores [group, padded]: products of queries and keys, minus infinity where nothing is seen
  void compare(const Sequence& s, const uint8_t* seen, int64_t group, int64_t padded, const T* keys) {
    const float scale = 1.f / std::sqrt((float)dim_);
    for (int64_t first = 0; first < rows_; first += BLOCK) {
      const int64_t count = widen(s, seen, keys, first);
      for (int64_t g = 0; g < group; g++)
        for (int64_t r = 0; r < count; r++) {
          floats dot = {};
          for (int64_t k = 0; k < wide_; k += LANES)
            dot = fused(wide(&queries_[g * wide_ + k]), wide(&block_[r * wide_ + k]), dot);
          scores_[g * padded + first + r] = sum(dot) * scale;
        }
    }
    for (int64_t g = 0; g < group; g++) {
      for (int64_t row = s.visible; seen && row < rows_; row++)
        if (hidden(s, seen, row)) scores_[g * padded + row] = -INFINITY;
      for (int64_t row = rows_; row < padded; row++) scores_[g * padded + row] = -INFINITY;
    }
  }

  static void weigh(float* scores, int64_t padded) {
    floats best = wide(scores);
    for (int64_t row = LANES; row < padded; row += LANES)
      best = wide(scores + row) > best ? wide(scores + row) : best;
    float most = best[0];
    for (int64_t i = 1; i < LANES; i++) most = best[i] > most ? best[i] : most;
    for (int64_t row = 0; row < padded; row += LANES)
      store(exp(wide(scores + row) - most), scores + row);
  }

  void mix(const Sequence& s, const uint8_t* seen, int64_t group, int64_t padded, const T* values,
           float* out) {
    mixed_.assign(group * wide_, 0);
    totals_.assign(group, 0);
    for (int64_t first = 0; first < rows_; first += BLOCK) {
      const int64_t count = widen(s, seen, values, first);
      for (int64_t g = 0; g < group; g++) {
        const float* weights = &scores_[g * padded + first];
        for (int64_t k = 0; k < wide_; k += LANES) {
          floats sum = wide(&mixed_[g * wide_ + k]);
          for (int64_t r = 0; r < count; r++)
            sum = fused(all(weights[r]), wide(&block_[r * wide_ + k]), sum);
          store(sum, &mixed_[g * wide_ + k]);
        }
        for (int64_t r = 0; r < count; r++) totals_[g] += weights[r];
      }
    }
    for (int64_t g = 0; g < group; g++)
      for (int64_t k = 0; k < dim_; k += LANES)
        store_some(wide(&mixed_[g * wide_ + k]) / totals_[g], out + g * dim_ + k, dim_ - k);
  }

  int64_t rows_, dim_, wide_;
  std::vector<float> queries_, block_, scores_, mixed_, totals_;
};
