// Decoder layers of the Llama family on a CPU. All threads stay in one parallel region from the first layer to
// the last; a pass of few rows reads nothing but weights and cached rows from main memory.
#pragma once

#include <new>

#include "attention.h"
#include "products.h"
#include "team.h"

struct Layer {
  const float *norm, *query_norm, *key_norm, *mlp_norm;  // query_norm, key_norm: null if there is none
  Matrix qkv, out, gate_up, down;
};

struct Sizes {
  int64_t hidden, heads, kv_heads, head_dim, intermediate;
  float eps;
  int32_t activation;  // 0: SiLU, 1: GELU by its tanh approximation
  int32_t kind;        // of keys and values: FLOAT32 or BFLOAT16
};

struct Pass {
  float* x;                // [n, hidden], overwritten
  const float* entry;      // [n, qkv.columns]: read by the first layer instead of norm(x); or null
  const float *cos, *sin;  // [positions, head_dim], the first half of the sines negated
  const int64_t* positions;  // [n]
  const Sequence* sequences;  // [count]
  float* scratch;          // its size: see run_layers in passes.cpp
  int64_t n, count, first;  // rows; sequences; the first layer's index in the caches
  float* const* taps;       // by layer: where to copy x before that layer, or null; or null: no copies
};

inline void normed(const float* x, const float* weight, int64_t size, float eps, float* to) {
  floats squares = {};
  for (int64_t k = 0; k < size; k += LANES) {
    const floats v = some(x + k, size - k);
    squares += v * v;
  }
  const float scale = 1.f / std::sqrt(sum(squares) / size + eps);
  for (int64_t k = 0; k < size; k += LANES)
    store_some(some(x + k, size - k) * scale * some(weight + k, size - k), to + k, size - k);
}

inline floats activated(const floats& x, int32_t kind) {  // GELU's tanh approximation is x * sigmoid(2 u)
  const floats u = kind ? (x + x * x * x * 0.044715f) * 1.5957691216f : x;
  return x / (1.f + exp(-u < 88.f ? -u : floats{} + 88.f));
}

inline void rotate(float* head, int64_t dim, const float* cos, const float* sin) {
  for (int64_t i = 0, half = dim / 2; i < half; i++) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cos[i] + b * sin[i];
    head[i + half] = b * cos[i + half] + a * sin[i + half];
  }
}

// x [n, columns] times a matrix: out [n, rows]. `room` is a buffer of the calling thread.
inline void product(const Matrix& w, const float* x, int64_t n, float* out, std::vector<bfloat>& room,
                    Team& team) {
  const void* entry = entry_of(w, x, n, room);
  team.each(w.rows, SHARE, [&](int64_t start, int64_t end) {
    multiply(w, start, end, entry, n, out + start, w.rows);
  });
}

// An allocator that aligns to cache lines: loading a register from two lines takes twice as long.
template <class V> struct Lines {
  typedef V value_type;
  V* allocate(size_t n) { return (V*)::operator new(n * sizeof(V), std::align_val_t(64)); }
  void deallocate(V* at, size_t) { ::operator delete(at, std::align_val_t(64)); }
  bool operator==(const Lines&) const { return true; }
  bool operator!=(const Lines&) const { return false; }
};
typedef std::vector<float, Lines<float>> Aligned;

// One thread's part of a pass; T is the type of keys and values.
template <class T> class Worker {
 public:
  Worker(const Sizes& sizes, const Pass& pass, Team& team)
      : s_(sizes), p_(pass), team_(team), rows_(pass.n), entry_(pass.n * sizes.hidden),
        piece_(2 * pass.n * PIECE) {
    for (int64_t i = 0, row = 0; i < pass.count; i++)
      for (int64_t t = 0; t < pass.sequences[i].count; t++, row++) {
        rows_[row] = {pass.sequences + i, t};
        if (t % TOGETHER == 0) starts_.push_back(row);
      }
    joint_ = pass.scratch;
    mixed_ = joint_ + pass.n * (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim;
    inner_ = mixed_ + pass.n * sizes.heads * sizes.head_dim;
  }

  void run(const Layer* layers, int64_t depth) {
    for (int64_t i = 0; i < depth; i++) {
      if (p_.taps && p_.taps[p_.first + i]) copy(p_.taps[p_.first + i]);
      const float* entry = i == 0 ? p_.entry : nullptr;
      attention(layers[i], p_.first + i, entry ? entry : norm(layers[i].norm));
      add(layers[i].out, mixed_);
      gate(layers[i].gate_up, norm(layers[i].mlp_norm));
      add(layers[i].down, inner_);
    }
  }

 private:
  struct Row { const Sequence* sequence; int64_t token; };
  static constexpr int64_t PIECE = 256;  // rows of a matrix whose results a thread buffers
  static constexpr int64_t TOGETHER = 4;  // new rows of a sequence that share one reading of its cached rows

  void copy(float* to) {
    team_.each(p_.n, 1, [&](int64_t start, int64_t end) {
      std::copy(p_.x + start * s_.hidden, p_.x + end * s_.hidden, to + start * s_.hidden);
    });
  }

  // Norms all rows of x. Every thread does so for itself, which takes less time than waiting for the others.
  const float* norm(const float* weight) {
    for (int64_t i = 0; i < p_.n; i++)
      normed(p_.x + i * s_.hidden, weight, s_.hidden, s_.eps, entry_.data() + i * s_.hidden);
    return entry_.data();
  }

  T* place(const Sequence& q, int64_t layer, int64_t which, int64_t head, int64_t row) const {
    return (T*)q.kv + (((layer * 2 + which) * s_.kv_heads + head) * q.capacity + row) * s_.head_dim;
  }

  void attention(const Layer& layer, int64_t index, const float* entry) {
    const int64_t heads = s_.heads + 2 * s_.kv_heads;
    product(layer.qkv, entry, p_.n, joint_, narrow_, team_);
    team_.each(p_.n * heads, 1, [&](int64_t start, int64_t end) {
      for (int64_t i = start; i < end; i++) place_head(layer, index, i / heads, i % heads);
    });
    team_.each(starts_.size() * s_.kv_heads, 1, [&](int64_t start, int64_t end) {
      for (int64_t i = start; i < end; i++) attend(index, starts_[i / s_.kv_heads], i % s_.kv_heads);
    });
  }

  // Attention of a few adjacent rows, for the query heads that share key-value head `kv`.
  void attend(int64_t index, int64_t first, int64_t kv) {
    const int64_t dim = s_.head_dim, group = s_.heads / s_.kv_heads;
    const int64_t stride = (s_.heads + 2 * s_.kv_heads) * dim, outs = s_.heads * dim;
    const Row& row = rows_[first];
    const int64_t left = row.sequence->count - row.token;
    attend_(*row.sequence, row.token, left < TOGETHER ? left : TOGETHER,
            {joint_ + first * stride + kv * group * dim, mixed_ + first * outs + kv * group * dim, stride,
             outs, group, dim, place(*row.sequence, index, 0, kv, 0),
             place(*row.sequence, index, 1, kv, 0)});
  }

  // Norms and rotates a head of queries or keys; stores a head of keys or values in the cache.
  void place_head(const Layer& layer, int64_t index, int64_t i, int64_t number) {
    const int64_t dim = s_.head_dim, kv = number - s_.heads;
    float* head = joint_ + (i * (s_.heads + 2 * s_.kv_heads) + number) * dim;
    if (kv < s_.kv_heads) {
      const float* weight = kv < 0 ? layer.query_norm : layer.key_norm;
      if (weight) normed(head, weight, dim, s_.eps, head);
      const int64_t angles = p_.positions[i] * dim;
      rotate(head, dim, p_.cos + angles, p_.sin + angles);
    }
    if (kv < 0) return;
    const Row& row = rows_[i];
    T* to = place(*row.sequence, index, kv >= s_.kv_heads, kv % s_.kv_heads,
                  row.sequence->before + row.token);
    for (int64_t k = 0; k < dim; k++) narrow(head[k], to + k);
  }

  // x += w * from
  void add(const Matrix& w, const float* from) {
    const void* x = entry_of(w, from, p_.n, narrow_);
    team_.each(w.rows, SHARE, [&](int64_t start, int64_t end) {
      for (int64_t a = start; a < end; a += PIECE) {
        const int64_t many = end - a < PIECE ? end - a : PIECE;
        multiply(w, a, a + many, x, p_.n, piece_.data(), many);
        for (int64_t i = 0; i < p_.n; i++)
          for (int64_t k = 0; k < many; k++) p_.x[i * s_.hidden + a + k] += piece_[i * many + k];
      }
    });
  }

  // inner = activation(gate) * up
  void gate(const Matrix& w, const float* entry) {
    const void* x = entry_of(w, entry, p_.n, narrow_);
    float* gates = piece_.data();
    team_.each(s_.intermediate, LANES, [&](int64_t start, int64_t end) {
      for (int64_t a = start; a < end; a += PIECE) {
        const int64_t many = end - a < PIECE ? end - a : PIECE, b = s_.intermediate + a;
        float* ups = gates + p_.n * many;
        multiply(w, a, a + many, x, p_.n, gates, many);
        multiply(w, b, b + many, x, p_.n, ups, many);
        for (int64_t i = 0; i < p_.n; i++)
          for (int64_t k = 0; k < many; k += LANES)
            store(activated(wide(gates + i * many + k), s_.activation) * wide(ups + i * many + k),
                  inner_ + i * s_.intermediate + a + k);
      }
    });
  }

  const Sizes& s_;
  const Pass& p_;
  Team& team_;
  std::vector<Row> rows_;
  std::vector<int64_t> starts_;  // the first row of each group that attends together
  Aligned entry_, piece_;
  std::vector<bfloat> narrow_;  // x as products read it, if they convert it
  Attention<T> attend_;
  // Shared by all threads: queries, keys and values [n, all heads]; attention's output [n, heads]; the MLP's
  // inner states [n, intermediate].
  float *joint_, *mixed_, *inner_;
};
