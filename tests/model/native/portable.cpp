// Computes products, a small pass with attention, and sampling from made-up numbers, and prints the results, one
// line each: a name, then values. test_portable.py compares those of several CPUs. Exit status 1: rows differ by
// how a pass is divided among calls or threads.

#include "passes.cpp"

#include <cstdio>

constexpr int64_t HIDDEN = 64, HEADS = 4, KV_HEADS = 2, DIM = 32, INNER = 96, DEPTH = 2, ROOM = 64;
constexpr int64_t QKV = (HEADS + 2 * KV_HEADS) * DIM;

struct Noise {  // the same numbers everywhere, from -1 to 1
  uint32_t state = 1;
  float operator()() {
    state = state * 1664525u + 1013904223u;
    return (int32_t)state / 2147483648.f;
  }
  std::vector<float> many(int64_t count, float size = 1) {
    std::vector<float> made(count);
    for (float& v : made) v = size * (*this)();
    return made;
  }
};

Noise noise;

// A random matrix of a kind, which keeps its values.
struct Kept {
  std::vector<char> values;
  std::vector<float> scales, bias;
  Matrix of;

  Kept(int64_t rows, int64_t columns, Kind kind, bool biased) {
    const int64_t count = rows * columns;
    values.resize(4 * count + 256);
    const float size = 1 / std::sqrt((float)columns);
    for (int64_t i = 0; i < count; i++) {
      const float v = noise();
      if (kind == FLOAT32) ((float*)values.data())[i] = v * size;
      if (kind == BFLOAT16) narrow(v * size, (bfloat*)values.data() + i);
      if (kind == INT8) values[i] = (char)(int)(v * 127);
      if (kind == INT4) values[i / 2] = (char)(int)(v * 127);
    }
    if (kind == INT8) scales = noise.many(rows, size / 127);
    if (kind == INT4) scales = noise.many(count / 16, size / 8);
    if (biased) bias = noise.many(rows);
    of = {values.data(), scales.data(), biased ? bias.data() : nullptr, rows, columns, kind};
  }
};

void print(const char* name, const std::vector<float>& values) {
  std::printf("%s", name);
  for (float v : values) std::printf(" %.9g", v);
  std::printf("\n");
}

bool products(const char* name, Kind kind) {
  const Kept matrix(77, 192, kind, true);
  const std::vector<float> x = noise.many(20 * 192);
  std::vector<float> whole(20 * 77), part(20 * 77);
  run_product(&matrix.of, x.data(), 20, whole.data(), 1);
  print(name, whole);
  bool same = true;
  for (int threads = 1; threads < 4; threads++)
    for (int64_t some : {1, 3, 7, 20}) {
      for (int64_t row = 0; row < 20; row += some)
        run_product(&matrix.of, x.data() + row * 192, std::min(some, 20 - row), &part[row * 77], threads);
      same = same && part == whole;
    }
  return same;
}

template <class T> struct Model {
  std::vector<Kept> matrices;
  std::vector<std::vector<float>> norms;
  std::vector<Layer> layers;
  std::vector<float> cos = noise.many(ROOM * DIM), sin = noise.many(ROOM * DIM);
  Sizes sizes{HIDDEN, HEADS, KV_HEADS, DIM, INNER, 1e-5f, 0, std::is_same_v<T, float> ? FLOAT32 : BFLOAT16};

  Model() {
    const Kind kind = (Kind)sizes.kind;
    matrices.reserve(4 * DEPTH), norms.reserve(2 * DEPTH);
    for (int64_t i = 0; i < DEPTH; i++) {
      const Matrix* made[4];
      const int64_t shapes[4][2] = {{QKV, HIDDEN}, {HIDDEN, HEADS * DIM}, {2 * INNER, HIDDEN}, {HIDDEN, INNER}};
      for (int64_t k = 0; k < 4; k++) {
        matrices.emplace_back(shapes[k][0], shapes[k][1], kind, k == 0);
        made[k] = &matrices.back().of;
      }
      norms.push_back(noise.many(HIDDEN)), norms.push_back(noise.many(HIDDEN));
      layers.push_back({norms[2 * i].data(), nullptr, nullptr, norms[2 * i + 1].data(), *made[0], *made[1],
                        *made[2], *made[3]});
    }
  }

  // States of two sequences of 11 and 5 tokens, read in passes that take `step` tokens of each.
  std::vector<float> run(const std::vector<float>& entry, int64_t step, int threads) const {
    const int64_t lengths[2] = {11, 5}, size = DEPTH * 2 * KV_HEADS * ROOM * DIM;
    std::vector<T> caches[2] = {std::vector<T>(size), std::vector<T>(size)};
    std::vector<float> found(entry.size());
    for (int64_t before = 0; before < 11; before += step) {
      std::vector<Sequence> sequences;
      std::vector<int64_t> positions, from;
      for (int64_t q = 0; q < 2; q++) {
        const int64_t count = std::min(step, lengths[q] - before);
        if (count < 1) continue;
        sequences.push_back({(char*)caches[q].data(), ROOM, before, count, before, nullptr});
        for (int64_t t = before; t < before + count; t++) positions.push_back(t), from.push_back(q * 11 + t);
      }
      const int64_t n = positions.size();
      std::vector<float> x(n * HIDDEN), scratch(n * (QKV + HEADS * DIM + INNER));
      for (int64_t i = 0; i < n; i++) std::copy_n(&entry[from[i] * HIDDEN], HIDDEN, &x[i * HIDDEN]);
      const Pass pass{x.data(), nullptr, cos.data(), sin.data(), positions.data(), sequences.data(),
                      scratch.data(), n, (int64_t)sequences.size(), 0, nullptr};
      run_layers(&sizes, layers.data(), DEPTH, &pass, threads);
      for (int64_t i = 0; i < n; i++) std::copy_n(&x[i * HIDDEN], HIDDEN, &found[from[i] * HIDDEN]);
    }
    return found;
  }
};

template <class T> bool passes(const char* name) {
  const Model<T> model;
  const std::vector<float> entry = noise.many(16 * HIDDEN), whole = model.run(entry, 11, 1);
  print(name, whole);
  bool same = true;
  for (int threads = 1; threads < 4; threads++)
    for (int64_t step : {1, 4, 11}) same = same && model.run(entry, step, threads) == whole;
  return same;
}

void sampling() {
  constexpr int64_t N = 1000;
  const std::vector<float> logits = noise.many(N, 8);
  std::vector<float> p(N), q(N), left(N);
  run_softmax(logits.data(), FLOAT32, 1, N, 1.25f, p.data());
  run_without(p.data(), N, 17, q.data());
  run_residual(p.data(), q.data(), N, 1.5f, left.data());
  print("softmax", p), print("without", q), print("residual", left);
  std::vector<float> drawn;
  for (int i = 0; i < 50; i++) {
    drawn.push_back((float)run_drawn(p.data(), N, (i + .5) / 50));
    drawn.push_back((float)run_keyed(p.data(), nullptr, N, 7, i));
  }
  print("drawn", drawn);
  std::printf("distribution %d\n", run_distributions(p.data(), 1, N, 1e-4f));
}

int main() {
  bool same = products("float32", FLOAT32);
  same = products("bfloat16", BFLOAT16) && same;
  same = products("int8", INT8) && same;
  same = products("int4", INT4) && same;
  same = passes<float>("pass32") && same;
  same = passes<bfloat>("pass16") && same;
  sampling();
  return same ? 0 : 1;
}
