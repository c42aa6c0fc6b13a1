// One level of an EAGLE head's draft in one call, from embeddings to the likeliest tokens.
#pragma once

#include "chain.h"

struct Level {
  Matrix output;
  const float *embedding_norm, *feature_norm, *norm;  // [hidden] each; norm: before the output head
  const void* embedding;  // [vocabulary, hidden], FLOAT32 or BFLOAT16 as the keys and values are
  const int64_t* tokens;  // [n]
  const float* features;  // [n, hidden]
  const int64_t* kept;    // [keeps]: the rows of the pass whose results are wanted
  float* entry;           // [n, 2 * hidden]: the layer's input, normed embeddings and features
  float* finals;          // [keeps, hidden]: normed states, scratch
  float* states;          // [keeps, hidden]: features for the next level
  float* logits;          // [keeps, output.rows]
  float* chances;         // [keeps, choices]: log probabilities of the likeliest tokens, in order
  int64_t* choices_of;    // [keeps, choices]: these tokens
  int64_t keeps, choices;
  int32_t residual_normed, output_normed;  // whether the layer adds to the normed feature; if `states` are normed
};

// One thread's part; p.entry must be l.entry, and p.x is filled here.
template <class T>
void run_rows(const Sizes& s, const Layer* layer, const Pass& p, const Level& l, Team& team) {
  const int64_t size = s.hidden;
  std::vector<float> wide_row(size);
  team.each(p.n, 1, [&](int64_t start, int64_t end) {
    for (int64_t i = start; i < end; i++) {
      const T* token = (const T*)l.embedding + l.tokens[i] * size;
      const float* feature = l.features + i * size;
      float *entry = l.entry + 2 * i * size, *feature_entry = entry + size;
      for (int64_t k = 0; k < size; k += LANES) store(wide(token + k), &wide_row[k]);
      normed(wide_row.data(), l.embedding_norm, size, s.eps, entry);
      normed(feature, l.feature_norm, size, s.eps, feature_entry);
      const float* from = l.residual_normed ? feature_entry : feature;
      std::copy(from, from + size, p.x + i * size);
    }
  });
  Worker<T>(s, p, team).run(layer, 1);
  team.each(l.keeps, 1, [&](int64_t start, int64_t end) {
    for (int64_t i = start; i < end; i++) {
      const float* x = p.x + l.kept[i] * size;
      normed(x, l.norm, size, s.eps, l.finals + i * size);
      const float* from = l.output_normed ? l.finals + i * size : x;
      std::copy(from, from + size, l.states + i * size);
    }
  });
  std::vector<bfloat> room;
  product(l.output, l.finals, l.keeps, l.logits, room, team);
  if (l.choices < 1) return;
  team.each(l.keeps, 1, [&](int64_t start, int64_t end) {
    for (int64_t i = start; i < end; i++)
      likeliest(l.logits + i * l.output.rows, l.output.rows, l.choices, l.chances + i * l.choices,
                l.choices_of + i * l.choices);
  });
}
