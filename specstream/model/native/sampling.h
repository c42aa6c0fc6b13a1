// Rows over a vocabulary: probabilities from logits, and draws of a token from a row.
#pragma once

#include <algorithm>

#include "lanes.h"

// What Python calls. All else is hidden, as several of these libraries may be loaded at once.
#if defined(_WIN32)
#define EXPORTED extern "C" __declspec(dllexport)
#else
#define EXPORTED extern "C" __attribute__((visibility("default")))
#endif

constexpr int64_t BLOCK = 256;  // values that are summed as floats; the sums of blocks are added as doubles

// exp(scale * x), scaled to sum 1; all NaN if a value is NaN or the maximum isn't finite.
template <class T> void softmax(const T* x, int64_t n, float scale, float* out) {
  auto scaled = [&](int64_t i) {
    return filled(some(x + i, n - i) * scale, n - i, -INFINITY);
  };
  floats tops = all(-INFINITY);
  for (int64_t i = 0; i < n; i += LANES) {
    const floats v = scaled(i);
    tops = v > tops ? v : tops;
  }
  float top[LANES];
  store(tops, top);
  const float most = *std::max_element(top, top + LANES);
  double whole = 0;
  for (int64_t start = 0; start < n; start += BLOCK) {
    floats sums = {};
    for (int64_t i = start; i < std::min(n, start + BLOCK); i += LANES) {
      const floats v = scaled(i) - most, power = v == v ? exp(v) : v;
      store_some(power, out + i, n - i);
      sums += power;
    }
    whole += sum(sums);
  }
  const float share = 1 / whole;
  for (int64_t i = 0; i < n; i++) out[i] *= share;
}

// The index at which the running sum passes uniform * (sum of all); -1 if that sum isn't positive and finite.
EXPORTED int64_t run_drawn(const float* weights, int64_t n, double uniform) {
  auto mass = [&](int64_t start) {
    double sums[8] = {}, rest = 0;
    if (n - start < BLOCK)
      for (int64_t i = start; i < n; i++) rest += weights[i];
    else
      for (int64_t i = start; i < start + BLOCK; i += 8)
        for (int64_t k = 0; k < 8; k++) sums[k] += weights[i + k];
    for (double sum : sums) rest += sum;
    return rest;
  };
  double whole = 0;
  for (int64_t start = 0; start < n; start += BLOCK) whole += mass(start);
  if (!(whole > 0) || std::isinf(whole)) return -1;
  const double wanted = std::min(uniform * whole, std::nextafter(whole, 0.));
  int64_t start = 0, found = -1;
  double before = 0;
  for (; start + BLOCK < n; start += BLOCK) {
    const double after = before + mass(start);
    if (after > wanted) break;
    before = after;
  }
  for (int64_t i = start; i < n && !(before > wanted); i++)  // by rounding it may pass only after the block
    if (weights[i] > 0) before += weights[found = i];
  for (; found < 0; n--)  // no mass from `start` on, again by rounding: take the last index that has some
    found = weights[n - 1] > 0 ? n - 1 : -1;
  return found;
}

// The weights with 0 at `index`, scaled to sum 1; all NaN if nothing is left.
EXPORTED void run_without(const float* weights, int64_t n, int64_t index, float* out) {
  std::copy(weights, weights + n, out);
  out[index] = 0;
  double whole = 0;
  for (int64_t start = 0; start < n; start += BLOCK) {
    floats sums = {};
    for (int64_t i = start; i < std::min(n, start + BLOCK); i += LANES) sums += some(out + i, n - i);
    whole += sum(sums);
  }
  const float share = 1 / whole;
  for (int64_t i = 0; i < n; i++) out[i] *= share;
}

// max(weight * p - q, 0)
EXPORTED void run_residual(const float* p, const float* q, int64_t n, float weight, float* out) {
  for (int64_t i = 0; i < n; i++) {
    const float left = weight * p[i] - q[i];
    out[i] = left < 0 ? 0 : left;  // keeps NaN
  }
}

// Whether a row has no negative value and a sum within `tolerance` of 1.
inline bool distribution(const float* row, int64_t n, float tolerance) {
  double whole = 0;
  for (int64_t start = 0; start < n; start += BLOCK) {
    floats sums = {}, least = {};
    for (int64_t i = start; i < std::min(n, start + BLOCK); i += LANES) {
      const floats v = some(row + i, n - i);
      sums += v;
      least = v < least ? v : least;
    }
    if (sum(least) < 0) return false;
    whole += sum(sums);
  }
  return std::fabs(whole - 1) < tolerance;
}

inline uint64_t mixed(uint64_t value) {  // SplitMix64's finaliser
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// The index of the largest log(probs) + G, where G is the Gumbel noise of noise.py for a seed, a position and
// tokens (null: 0 to n - 1). As G = -log(E) and E = -log(u), that is the index of the smallest E / probs; as E is
// at least 1 - u, most tokens are ruled out without a logarithm.
EXPORTED int64_t run_keyed(const float* probs, const int64_t* tokens, int64_t n, int64_t seed,
                             int64_t position) {
  constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15u;
  constexpr int64_t AT_ONCE = 64;
  const uint64_t key = mixed(mixed((uint64_t)seed + GOLDEN) + (uint64_t)position * GOLDEN);
  double least = INFINITY, uniform[AT_ONCE];
  int64_t best = 0;
  for (int64_t start = 0; start < n; start += AT_ONCE) {
    const int64_t count = std::min(AT_ONCE, n - start);
    for (int64_t k = 0; k < count; k++) {
      const uint64_t token = tokens ? tokens[start + k] : start + k;
      const uint64_t bits = mixed(key + (token + 1) * GOLDEN) >> 12;
      uniform[k] = ((double)(int64_t)bits + .5) * 0x1p-52;
    }
    for (int64_t k = 0; k < count; k++) {
      const double p = probs[start + k];
      if (!(1 - uniform[k] < p * least)) continue;  // also if p is 0 or NaN
      const double wait = -std::log(uniform[k]) / p;
      if (wait < least) least = wait, best = start + k;
    }
  }
  return best;
}
