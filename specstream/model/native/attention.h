// Attention of a few tokens, for the heads of queries that share a head of keys and values.
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

template <class T> struct Heads {  // of queries, [tokens, group, dim], that share keys and values
  const float* queries;
  float* out;              // likewise
  int64_t stride, outs;    // from one token to the next, of queries and out
  int64_t group, dim;
  const T *keys, *values;  // [capacity, dim]
};

// Every sum runs over the rows in their order, and rows that a token doesn't see add exactly nothing: a
// token gets the very sums that it would get alone, and a node of a tree those that it would get in a chain.
template <class T> class Attention {
 public:
  // Of new rows [token, token + count) of a sequence.
  void operator()(const Sequence& s, int64_t token, int64_t count, const Heads<T>& heads) {
    s_ = &s, heads_ = &heads, token_ = token, many_ = count * heads.group;
    rows_ = s.before + (s.seen ? s.count : token + count);
    wide_ = padded(heads.dim, LANES), long_ = padded(rows_, BLOCK);
    queries_.assign(many_ * wide_, 0), mixed_.assign(many_ * wide_, 0), totals_.assign(many_, 0);
    block_.resize(BLOCK * wide_);
    if ((int64_t)scores_.size() < many_ * long_) scores_.resize(2 * many_ * long_);
    for (int64_t q = 0; q < many_; q++)
      std::memcpy(&queries_[q * wide_], heads.queries + at(q, heads.stride), heads.dim * sizeof(float));
    for (int64_t first = 0; first < rows_; first += BLOCK) {
      widen(heads.keys, first);
      for (int64_t q = 0; q < many_; q++)
        if (first < end(q)) compare(q, first);
    }
    for (int64_t q = 0; q < many_; q++) hide(q), weigh(&scores_[q * long_], padded(end(q), LANES));
    for (int64_t first = 0; first < rows_; first += BLOCK) {
      widen(heads.values, first);
      for (int64_t q = 0; q < many_; q++)
        if (first < end(q)) mix(q, first, end(q) - first < BLOCK ? end(q) - first : BLOCK);
    }
    for (int64_t q = 0; q < many_; q++)
      for (int64_t k = 0; k < heads.dim; k += LANES)
        store_some(wide(&mixed_[q * wide_ + k]) / totals_[q], heads.out + at(q, heads.outs) + k,
                   heads.dim - k);
  }

 private:
  static constexpr int64_t BLOCK = 16;  // rows that are widened once for all queries

  static int64_t padded(int64_t count, int64_t to) { return (count + to - 1) / to * to; }
  int64_t at(int64_t q, int64_t stride) const {
    return q / heads_->group * stride + q % heads_->group * heads_->dim;
  }
  int64_t end(int64_t q) const {  // of the rows that may be seen
    return s_->seen ? rows_ : s_->before + token_ + q / heads_->group + 1;
  }

  // BLOCK rows as floats, zeros behind a row's dim and behind the last row.
  void widen(const T* from, int64_t first) {
    for (int64_t r = 0; r < BLOCK; r++)
      for (int64_t k = 0; k < wide_; k += LANES)
        store(first + r < rows_ ? some(from + (first + r) * heads_->dim + k, heads_->dim - k) : floats{},
              &block_[r * wide_ + k]);
  }

  // Products of a query and the keys of a block.
  void compare(int64_t q, int64_t first) {
    const float scale = 1.f / std::sqrt((float)heads_->dim);
    for (int64_t r = 0; r < BLOCK; r += LANES) {
      floats dots[LANES];
      UNROLLED for (int i = 0; i < LANES; i++) dots[i] = floats{};
      for (int64_t k = 0; k < wide_; k += LANES) {
        const floats query = wide(&queries_[q * wide_ + k]);
        UNROLLED for (int i = 0; i < LANES; i++)
          dots[i] = fused(query, wide(&block_[(r + i) * wide_ + k]), dots[i]);
      }
      store(sums(dots) * scale, &scores_[q * long_ + first + r]);
    }
  }

  // Minus infinity where nothing is seen.
  void hide(int64_t q) {
    float* scores = &scores_[q * long_];
    for (int64_t row = end(q); row < padded(end(q), LANES); row++) scores[row] = -INFINITY;
    if (!s_->seen) return;
    const int64_t width = s_->before + s_->count - s_->visible;
    const uint8_t* seen = s_->seen + (token_ + q / heads_->group) * width;
    for (int64_t row = s_->visible; row < rows_; row++)
      if (!seen[row - s_->visible]) scores[row] = -INFINITY;
  }

  static void weigh(float* scores, int64_t count) {
    floats best = wide(scores);
    for (int64_t row = LANES; row < count; row += LANES)
      best = wide(scores + row) > best ? wide(scores + row) : best;
    float most = best[0];
    for (int64_t i = 1; i < LANES; i++) most = best[i] > most ? best[i] : most;
    for (int64_t row = 0; row < count; row += LANES)
      store(exp(wide(scores + row) - most), scores + row);
  }

  // The values of a block, by weight. What isn't seen is left out: it might be no number.
  void mix(int64_t q, int64_t first, int64_t count) {
    const float* weights = &scores_[q * long_ + first];
    float* to = &mixed_[q * wide_];
    for (int64_t r = 0; r < count; r++) totals_[q] += weights[r];
    int64_t k = 0;
    for (; k + 8 * LANES <= wide_; k += 8 * LANES) add<8>(weights, count, k, to + k);
    for (; k + 4 * LANES <= wide_; k += 4 * LANES) add<4>(weights, count, k, to + k);
    for (; k < wide_; k += LANES) add<1>(weights, count, k, to + k);
  }

  template <int K> void add(const float* weights, int64_t count, int64_t k, float* to) const {
    floats sums[K];
    UNROLLED for (int i = 0; i < K; i++) sums[i] = wide(to + i * LANES);
    for (int64_t r = 0; r < count; r++) {
      if (s_->seen && weights[r] == 0.f) continue;
      const floats weight = all(weights[r]);
      UNROLLED for (int i = 0; i < K; i++)
        sums[i] = fused(weight, wide(&block_[r * wide_ + k + i * LANES]), sums[i]);
    }
    UNROLLED for (int i = 0; i < K; i++) store(sums[i], to + i * LANES);
  }

  const Sequence* s_;
  const Heads<T>* heads_;
  int64_t token_, many_, rows_, wide_, long_;  // many_: queries
  std::vector<float> queries_, block_, scores_, mixed_, totals_;
};
