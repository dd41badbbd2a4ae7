// The recurrence of layers that keep a state of each row: gated delta rules, Mamba 2 and linear attention.
//
// Every token goes through the same formula, one after the other, so that its output does not depend on how its row was
// cut, nor on what runs beside it. The state behind a token is written where it is kept, without a copy.
//
//   S = decay * S;  d = is_delta ? (v - k^T S) * beta : v;  S = S + k d^T;  out = q^T S
//
// Shapes: N tokens, B rows, E entries, H heads, K size of a key, V size of a value. Arithmetic is float32.

#pragma once

#ifdef __AVX512F__
#include <immintrin.h>
#endif

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

// Writes what is not read again soon past the caches, if it is aligned.
inline void store_past_caches(float* p, Floats x, int num) {
#ifdef __AVX512F__
  if (num == kLanes && reinterpret_cast<uintptr_t>(p) % sizeof(Floats) == 0) return _mm512_stream_ps(p, (__m512)x);
#endif
  store(p, x, num);
}

// Some columns of one head's state, at most kColumnsAtOnce: in an entry, where lines lie `stride` numbers apart.
struct Columns {
  const float* at;  // null: zeros
  int64_t stride;
};

// Advances columns by one token; they go to `next` (unless it is null), and to `kept` (unless that is null).
inline void advance(const Recurrence& r, Columns in, float* next, float* kept, int64_t num, const float* q, const float* k,
                    const float* v, const float* decay, float beta, float* out) {
  const int num_vectors = (num + kLanes - 1) / kLanes;
  Floats change[4], found[4];
  int width[4];
  for (int j = 0; j < num_vectors; ++j) {
    width[j] = num - j * kLanes < kLanes ? num - j * kLanes : kLanes;
    change[j] = load(v + j * kLanes, width[j]);
    found[j] = all(0.0f);
  }
  const int64_t decay_stride = r.has_decay_of_keys;
  if (r.is_delta) {
    Floats known[4] = {};
    if (in.at)
      for (int64_t i = 0; i < r.key_size; ++i)
        for (int j = 0; j < num_vectors; ++j)
          known[j] += (load(in.at + i * in.stride + j * kLanes, width[j]) * decay[i * decay_stride]) * k[i];
    for (int j = 0; j < num_vectors; ++j) change[j] = (change[j] - known[j]) * beta;
  }
  for (int64_t i = 0; i < r.key_size; ++i)
    for (int j = 0; j < num_vectors; ++j) {
      Floats state = change[j] * k[i];
      if (in.at) state += load(in.at + i * in.stride + j * kLanes, width[j]) * decay[i * decay_stride];
      if (next) store(next + i * kColumnsAtOnce + j * kLanes, state);
      if (kept) store_past_caches(kept + i * r.value_size + j * kLanes, state, width[j]);
      found[j] += state * q[i];
    }
  for (int j = 0; j < num_vectors; ++j) store(out + j * kLanes, found[j], width[j]);
}

inline void recur(const Recurrence& r, float* out) {
  const int64_t state_size = r.key_size * r.value_size, per_head = r.num_heads / r.num_key_heads;
  const int64_t decay_size = r.has_decay_of_keys ? r.key_size : 1;
  const int64_t num_blocks = (r.value_size + kColumnsAtOnce - 1) / kColumnsAtOnce;
#pragma omp parallel
  {
    std::vector<float> work(r.key_size * kColumnsAtOnce);  // the columns of the token before
#pragma omp for collapse(3) schedule(dynamic)
    for (int64_t row = 0; row < r.num_rows; ++row)
      for (int64_t head = 0; head < r.num_heads; ++head)
        for (int64_t block = 0; block < num_blocks; ++block) {
          const int64_t column = block * kColumnsAtOnce, end = r.row_first[row + 1];
          const int64_t num = r.value_size - column < kColumnsAtOnce ? r.value_size - column : kColumnsAtOnce;
          auto entry = [&](int64_t number) {
            return number < 0 ? nullptr : r.states + (number * r.num_heads + head) * state_size + column;
          };
          Columns in = {entry(r.read[row]), r.value_size};
          for (int64_t n = r.row_first[row]; n < end; ++n) {
            const int64_t line = n * r.num_heads + head, key_line = n * r.num_key_heads + head / per_head;
            const float *q = r.query + key_line * r.key_size, *k = r.key + key_line * r.key_size;
            float* next = n + 1 < end ? work.data() : nullptr;
            advance(r, in, next, entry(r.written[n]), num, q, k, r.value + line * r.value_size + column,
                    r.decay + line * decay_size, r.beta ? r.beta[line] : 1.0f, out + line * r.value_size + column);
            in = {next, kColumnsAtOnce};
          }
        }
  }
}

}  // namespace
