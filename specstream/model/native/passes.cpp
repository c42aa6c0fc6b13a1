// What Python calls; see structs.py for the structures there.

#include "chain.h"
#include "level.h"

extern "C" {

// Layers over p.x; scratch: n * ((2 * heads + 2 * kv_heads) * head_dim + intermediate) floats.
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

// A pass over one sequence, then greedy steps behind it; scratch as for run_layers.
void run_chain(const Sizes* sizes, const Layer* layers, int64_t depth, const Pass* pass,
               Chain* chain, int32_t threads) {
  together(threads, [&](Team& team) {
    if (sizes->kind == BFLOAT16)
      run_steps<bfloat>(*sizes, layers, depth, *pass, *chain, team);
    else
      run_steps<float>(*sizes, layers, depth, *pass, *chain, team);
  });
}

// One level of a draft by a head of one layer; scratch as for run_layers.
void run_level(const Sizes* sizes, const Layer* layer, const Pass* pass, const Level* level,
               int32_t threads) {
  together(threads, [&](Team& team) {
    if (sizes->kind == BFLOAT16)
      run_rows<bfloat>(*sizes, layer, *pass, *level, team);
    else
      run_rows<float>(*sizes, layer, *pass, *level, team);
  });
}
}
