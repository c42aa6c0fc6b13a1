// Attention of a few tokens of a sequence, for the query heads that share one key-value head.
#pragma once

#include <vector>

#include "lanes.h"

struct Sequence {         // its new rows are adjacent in a pass, in order
  char* kv;               // the cache: [layers, 2, kv_heads, capacity, head_dim], contiguous
  int64_t capacity;       // rows that the cache has room for
  int64_t before, count;  // valid rows in the cache; new rows of this pass
  int64_t visible;        // the number of first rows that all new rows see
  const uint8_t* seen;    // tree mask [count, before + count - visible] of the other rows; null: a chain
};

template <class T> struct Heads {  // the query heads that share one key-value head
  const float* queries;    // [tokens, group, dim]
  float* out;              // [tokens, group, dim]
  int64_t stride, outs;    // floats from one token to the next, in queries and in out
  int64_t group, dim;      // query heads; size of a head
  const T *keys, *values;  // [capacity, dim]
};

// Every sum runs over the rows in their order, and rows that a token doesn't see don't change it by a bit: so a
// token gets the same bits as in a pass of its own, and a node of a tree the same as in a chain.
template <class T> class Attention {
 public:
  // Computes the outputs of new rows [token, token + count) of a sequence.
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
  static constexpr int64_t BLOCK = 16;  // cached rows that are converted to float at a time, for all queries

  static int64_t padded(int64_t count, int64_t to) { return (count + to - 1) / to * to; }
  int64_t at(int64_t q, int64_t stride) const {
    return q / heads_->group * stride + q % heads_->group * heads_->dim;
  }
  int64_t end(int64_t q) const {  // the number of first rows among which query q's visible ones are
    return s_->seen ? rows_ : s_->before + token_ + q / heads_->group + 1;
  }

  // Converts BLOCK rows to floats, with zeros after a row's dim and after the last row.
  void widen(const T* from, int64_t first) {
    for (int64_t r = 0; r < BLOCK; r++)
      for (int64_t k = 0; k < wide_; k += LANES)
        store(first + r < rows_ ? some(from + (first + r) * heads_->dim + k, heads_->dim - k) : floats{},
              &block_[r * wide_ + k]);
  }

  // Scores of a query for the keys of a block.
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

  // Sets the scores of rows that the query doesn't see to minus infinity.
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

  // Adds the values of a block by their weights. Rows that aren't seen are skipped: they may hold NaN.
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
  int64_t token_, many_, rows_, wide_, long_;  // many_: number of queries; wide_, long_: padded dim, rows
  std::vector<float> queries_, block_, scores_, mixed_, totals_;
};
