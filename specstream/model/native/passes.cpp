// The functions that Python calls; structs.py declares the same structures.

#include "chain.h"
#include "level.h"
#include "sampling.h"

// Calls body with a value of the type of keys and values.
template <class Body> void by_kind(const Sizes& sizes, Body body) {
  if (sizes.kind == BFLOAT16)
    body(bfloat{});
  else
    body(float{});
}

// Decoder layers over pass->x; scratch: n * ((2 * heads + 2 * kv_heads) * head_dim + intermediate) floats.
EXPORTED void run_layers(const Sizes* sizes, const Layer* layers, int64_t depth, const Pass* pass,
                int32_t threads) {
  together(threads, [&](Team& team) {
    by_kind(*sizes, [&](auto kind) {
      Worker<decltype(kind)>(*sizes, *pass, team).run(layers, depth);
    });
  });
}

// x [n, columns] times a matrix: out [n, rows].
EXPORTED void run_product(const Matrix* w, const float* x, int64_t n, float* out, int32_t threads) {
  together(threads, [&](Team& team) {
    std::vector<bfloat> room;
    product(*w, x, n, out, room, team);
  });
}

// A pass over one sequence, then greedy decoding steps; scratch as for run_layers.
EXPORTED void run_chain(const Sizes* sizes, const Layer* layers, int64_t depth, const Pass* pass,
               Chain* chain, int32_t threads) {
  together(threads, [&](Team& team) {
    by_kind(*sizes, [&](auto kind) {
      run_steps<decltype(kind)>(*sizes, layers, depth, *pass, *chain, team);
    });
  });
}

// One level of an EAGLE head's draft; scratch as for run_layers.
EXPORTED void run_level(const Sizes* sizes, const Layer* layer, const Pass* pass, const Level* level,
               int32_t threads) {
  together(threads, [&](Team& team) {
    by_kind(*sizes, [&](auto kind) {
      run_rows<decltype(kind)>(*sizes, layer, *pass, *level, team);
    });
  });
}

// Logits [rows, n], FLOAT32 or BFLOAT16, to probabilities. For this and the functions below see sampling.h,
// which also defines run_drawn, run_without, run_residual and run_keyed.
EXPORTED void run_softmax(const void* x, int32_t kind, int64_t rows, int64_t n, float scale, float* out) {
  for (int64_t row = 0; row < rows; row++, out += n)
    if (kind == BFLOAT16)
      softmax((const bfloat*)x + row * n, n, scale, out);
    else
      softmax((const float*)x + row * n, n, scale, out);
}

EXPORTED int32_t run_distributions(const float* rows, int64_t count, int64_t n, float tolerance) {
  for (int64_t row = 0; row < count; row++)
    if (!distribution(rows + row * n, n, tolerance)) return 0;
  return 1;
}

// Spreads rows [count, n] to the columns `ids` of rows [count, size], `rest` elsewhere.
EXPORTED void run_spread(const float* rows, const int64_t* ids, int64_t count, int64_t n, int64_t size,
                float rest, float* out) {
  std::fill(out, out + count * size, rest);
  for (int64_t row = 0; row < count; row++, rows += n, out += size)
    for (int64_t i = 0; i < n; i++) out[ids[i]] = rows[i];
}
