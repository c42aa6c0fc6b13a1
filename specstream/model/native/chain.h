// Several greedy decoding steps of one sequence, each of which reads the token that the last one chose.
#pragma once

#include <algorithm>

#include "layers.h"

struct Chain {
  Matrix head;
  const float* norm;        // [hidden], the final norm before the output head
  const void* embedding;    // [vocabulary, hidden], FLOAT32 or BFLOAT16 as the keys and values are
  int64_t steps, choices;   // the most tokens to decode; only the first `choices` token ids can be chosen
  float* logits;            // [head.rows], scratch
  int64_t* tokens;          // [steps], output
  float* confidences;       // [steps], output: the tokens' probabilities
  const int64_t* ends;      // [end_count]: tokens after which the chain ends
  const double *edges, *chances, *prices;  // [edge_count], [edge_count + 1], [steps] or null: see stop.py
  int64_t end_count, edge_count;
  double survival, ceiling;  // see stop.py
  int64_t made;             // output: the number of decoded tokens; 0 until the chain has ended
};

// Finds the likeliest tokens, in order, and their log probabilities. If logits are NaN, those are -inf or NaN.
inline void likeliest(const float* logits, int64_t count, int64_t choices, float* chances,
                      int64_t* tokens) {
  std::fill(chances, chances + choices, -INFINITY);
  std::fill(tokens, tokens + choices, 0);
  for (int64_t i = 0; i < count; i++) {
    if (!(logits[i] > chances[choices - 1])) continue;
    int64_t at = choices - 1;
    for (; at > 0 && logits[i] > chances[at - 1]; at--)
      chances[at] = chances[at - 1], tokens[at] = tokens[at - 1];
    chances[at] = logits[i], tokens[at] = i;
  }
  const float most = chances[0];
  floats sums = {};
  for (int64_t i = 0; i < count; i += LANES)
    sums += exp(filled(some(logits + i, count - i), count - i, -INFINITY) - most);
  const float whole = most + std::log(sum(sums));
  for (int64_t k = 0; k < choices; k++) chances[k] -= whole;
}

// Whether the chain ends after a step, by the rule in stop.py; must be called once for each step, in order.
inline bool ends(Chain& chain, int64_t step, int64_t token, float confidence) {
  if (step + 1 == chain.steps) return true;
  if (std::count(chain.ends, chain.ends + chain.end_count, token)) return true;
  if (!chain.prices) return false;
  const double* edge = chain.edges + chain.edge_count;
  const double chance = chain.chances[std::upper_bound(chain.edges, edge, confidence) - chain.edges];
  chain.survival *= chance;
  return chain.survival * std::min(chance, chain.ceiling) <= chain.prices[step];
}

// One thread's part of all steps; p.x holds the embeddings of the first pass's tokens.
template <class T>
void run_steps(const Sizes& sizes, const Layer* layers, int64_t depth, Pass p, Chain& chain,
               Team& team) {
  Sequence sequence = p.sequences[0];
  p.sequences = &sequence;
  std::vector<float> last(sizes.hidden);
  std::vector<bfloat> room;
  for (int64_t step = 0; !chain.made; step++) {
    Worker<T>(sizes, p, team).run(layers, depth);
    normed(p.x + (p.n - 1) * sizes.hidden, chain.norm, sizes.hidden, sizes.eps, last.data());
    product(chain.head, last.data(), 1, chain.logits, room, team);
    team.each(1, 1, [&](int64_t, int64_t) {
      float chance;
      int64_t token;
      likeliest(chain.logits, chain.choices, 1, &chance, &token);
      const float confidence = std::exp(chance);
      chain.tokens[step] = token;
      chain.confidences[step] = confidence;
      const T* row = (const T*)chain.embedding + token * sizes.hidden;
      for (int64_t k = 0; k < sizes.hidden; k += LANES) store(wide(row + k), p.x + k);
      if (ends(chain, step, token, confidence)) chain.made = step + 1;
    });
    sequence.before = sequence.visible = sequence.before + sequence.count;
    sequence.count = p.n = 1;
    p.positions = &sequence.before;
  }
}
