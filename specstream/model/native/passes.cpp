// The functions that Python calls; structs.py declares the same structures.

#include "chain.h"
#include "level.h"
#include "sampling.h"

extern "C" {

// Decoder layers over pass->x; scratch: n * ((2 * heads + 2 * kv_heads) * head_dim + intermediate) floats.
void run_layers(const Sizes* sizes, const Layer* layers, int64_t depth, const Pass* pass,
                int32_t threads) {
  together(threads, [&](Team& team) {
    if (sizes->kind == BFLOAT16)
      Worker<bfloat>(*sizes, *pass, team).run(layers, depth);
    else
      Worker<float>(*sizes, *pass, team).run(layers, depth);
  });
}

// x [n, columns] times a matrix: out [n, rows].
void run_product(const Matrix* w, const float* x, int64_t n, float* out, int32_t threads) {
  together(threads, [&](Team& team) {
    std::vector<bfloat> room;
    product(*w, x, n, out, room, team);
  });
}

// A pass over one sequence, then greedy decoding steps; scratch as for run_layers.
void run_chain(const Sizes* sizes, const Layer* layers, int64_t depth, const Pass* pass,
               Chain* chain, int32_t threads) {
  together(threads, [&](Team& team) {
    if (sizes->kind == BFLOAT16)
      run_steps<bfloat>(*sizes, layers, depth, *pass, *chain, team);
    else
      run_steps<float>(*sizes, layers, depth, *pass, *chain, team);
  });
}

// One level of an EAGLE head's draft; scratch as for run_layers.
void run_level(const Sizes* sizes, const Layer* layer, const Pass* pass, const Level* level,
               int32_t threads) {
  together(threads, [&](Team& team) {
    if (sizes->kind == BFLOAT16)
      run_rows<bfloat>(*sizes, layer, *pass, *level, team);
    else
      run_rows<float>(*sizes, layer, *pass, *level, team);
  });
}

// Logits [rows, n], FLOAT32 or BFLOAT16, to probabilities. For this and the functions below see sampling.h.
void run_softmax(const void* x, int32_t kind, int64_t rows, int64_t n, float scale, float* out) {
  for (int64_t row = 0; row < rows; row++, out += n)
    if (kind == BFLOAT16)
      softmax((const bfloat*)x + row * n, n, scale, out);
    else
      softmax((const float*)x + row * n, n, scale, out);
}

int64_t run_drawn(const float* weights, int64_t n, double uniform) {
  return drawn(weights, n, uniform);
}

void run_without(const float* weights, int64_t n, int64_t index, float* out) {
  without(weights, n, index, out);
}

void run_residual(const float* p, const float* q, int64_t n, float weight, float* out) {
  residual(p, q, n, weight, out);
}

int32_t run_distributions(const float* rows, int64_t count, int64_t n, float tolerance) {
  for (int64_t row = 0; row < count; row++)
    if (!distribution(rows + row * n, n, tolerance)) return 0;
  return 1;
}

// Spreads rows [count, n] to the columns `ids` of rows [count, size], `rest` elsewhere.
void run_spread(const float* rows, const int64_t* ids, int64_t count, int64_t n, int64_t size,
                float rest, float* out) {
  std::fill(out, out + count * size, rest);
  for (int64_t row = 0; row < count; row++, rows += n, out += size)
    for (int64_t i = 0; i < n; i++) out[ids[i]] = rows[i];
}

int64_t run_keyed(const float* probs, const int64_t* tokens, int64_t n, int64_t seed,
                  int64_t position) {
  return keyed(probs, tokens, n, seed, position);
}
}
