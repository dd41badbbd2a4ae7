// The recurrence of layers that keep a state of each row: gated delta rules, Mamba 2 and linear attention.
//
// Every token goes through the same formula, one after the other, so that its output does not depend on how its row was
// cut, nor on what runs beside it. The state behind a token is written where it is kept, without a copy.
//
//   S = decay * S;  d = is_delta ? (v - k^T S) * beta : v;  S = S + k d^T;  out = q^T S
//
// Shapes: N tokens, B rows, E entries, H heads, K size of a key, V size of a value. Arithmetic is float32.

#pragma once

#include <vector>

#include "vectors.h"

namespace {

struct Recurrence {
  int64_t num_rows, num_heads, num_key_heads, key_size, value_size;
  int64_t has_decay_of_keys, is_delta;
  const int64_t* row_first;  // [B + 1]: row b has the tokens row_first[b] up to row_first[b + 1]
  const int64_t* read;       // [B]: the entry of the state before the first token; -1: it is zero
  const int64_t* written;    // [N]: the entry for the state behind the token; -1: it is not kept
  const float *query, *key;  // [N, key heads, K]; a key head serves H / key heads heads in turn
  const float* value;        // [N, H, V]
  const float* decay;        // [N, H], or [N, H, K] of each key
  const float* beta;         // [N, H], or null
  float* states;             // [E, H, K, V]
};

constexpr int kColumnsAtOnce = 4 * kLanes;

// Advances the columns from `first` on, at most kColumnsAtOnce, of one head's state by one token.
inline void advance(const Recurrence& r, const float* in, float* out_state, const float* q, const float* k, const float* v,
                    const float* decay, float beta, int64_t first, float* out) {
  const int64_t size = r.value_size, num = r.value_size - first < kColumnsAtOnce ? r.value_size - first : kColumnsAtOnce;
  const int num_vectors = (num + kLanes - 1) / kLanes;
  Floats change[4], found[4];
  int width[4];
  for (int j = 0; j < num_vectors; ++j) {
    width[j] = num - j * kLanes < kLanes ? num - j * kLanes : kLanes;
    change[j] = load(v + first + j * kLanes, width[j]);
    found[j] = all(0.0f);
  }
  const int64_t stride = r.has_decay_of_keys;
  if (r.is_delta) {
    Floats known[4] = {};
    if (in)
      for (int64_t i = 0; i < r.key_size; ++i)
        for (int j = 0; j < num_vectors; ++j)
          known[j] += (load(in + i * size + first + j * kLanes, width[j]) * decay[i * stride]) * k[i];
    for (int j = 0; j < num_vectors; ++j) change[j] = (change[j] - known[j]) * beta;
  }
  for (int64_t i = 0; i < r.key_size; ++i)
    for (int j = 0; j < num_vectors; ++j) {
      const int64_t place = i * size + first + j * kLanes;
      Floats state = change[j] * k[i];
      if (in) state += load(in + place, width[j]) * decay[i * stride];
      store(out_state + place, state, width[j]);
      found[j] += state * q[i];
    }
  for (int j = 0; j < num_vectors; ++j) store(out + first + j * kLanes, found[j], width[j]);
}

inline void recur(const Recurrence& r, float* out) {
  const int64_t state_size = r.key_size * r.value_size, per_head = r.num_heads / r.num_key_heads;
  const int64_t decay_size = r.has_decay_of_keys ? r.key_size : 1;
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t row = 0; row < r.num_rows; ++row)
    for (int64_t head = 0; head < r.num_heads; ++head) {
      std::vector<float> scratch;  // of states that are not kept
      const float* in = r.read[row] < 0 ? nullptr : r.states + (r.read[row] * r.num_heads + head) * state_size;
      for (int64_t n = r.row_first[row]; n < r.row_first[row + 1]; ++n) {
        float* state;
        if (r.written[n] >= 0) {
          state = r.states + (r.written[n] * r.num_heads + head) * state_size;
        } else {
          scratch.resize(state_size);
          state = scratch.data();
        }
        const int64_t line = n * r.num_heads + head, key_line = n * r.num_key_heads + head / per_head;
        const float *q = r.query + key_line * r.key_size, *k = r.key + key_line * r.key_size;
        for (int64_t first = 0; first < r.value_size; first += kColumnsAtOnce)
          advance(r, in, state, q, k, r.value + line * r.value_size, r.decay + line * decay_size,
                  r.beta ? r.beta[line] : 1.0f, first, out + line * r.value_size);
        in = state;
      }
    }
}

}  // namespace
