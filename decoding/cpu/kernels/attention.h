// Rotary positions, the write into the slot cache, and attention of each row's tokens over the row's own positions.
//
// torch does the same in some fifteen operations a layer, and its attention pads every row to the longest and starts two
// small products for each head of each row. Here each row reads its own keys and values once, and nothing else.
//
// The output of a query depends on its own position only: not on its neighbours, nor on how its row was split. (This
// holds for finite numbers; a value that is not finite may reach neighbours, and `Engine` scores such a row alone.)
//
// Shapes: N tokens, B rows, H KV heads, G query heads for each, D head size (a multiple of 16), P positions of a slot.

#pragma once

#include <limits>
#include <vector>

#include "softcap.h"
#include "vectors.h"

namespace {

struct Forward {
  int64_t num_rows, num_tokens, num_kv_heads, group, head_size, num_positions, num_visible;
  const int64_t* row_first;       // [B + 1]: row b has the tokens row_first[b] up to row_first[b + 1]
  const int64_t* slot;            // [N]
  const int64_t* write_position;  // [N]: where the token's key and value are written
  const int64_t* position;        // [N]: the last position the token sees
  const int64_t* turn;            // [N]: the token's line of the rotary tables
  const void* const* tables;      // rotary ones, cos and sin of each kind: [positions, D], the rotation's sign in sin
  int64_t half;                   // numbers that turn together are so far apart: half of those that turn, or 1
  float scale, softcap;           // of the scores; no cap if it is 0
};

struct LayerCache {
  void *keys, *values;                        // [S, H, P, D]
  const void *query_norm, *key_norm;          // [D], or null; [Q * D] and [H * D] of all heads together
  float epsilon, norm_offset;
  int64_t norms_all_heads;                    // whether a token's heads are normalized together
  int64_t window;                             // positions that a query sees, up to its own; 0: all
  int64_t kind;                               // of rotary tables
};

// What makes the mean square of these numbers 1.
template <class T>
float normalizer(const T* x, int64_t size, float epsilon) {
  Floats squares = all(0.0f);
  for (int64_t d = 0; d < size; d += kLanes) squares += load(x + d) * load(x + d);
  return 1.0f / __builtin_sqrtf(sum(squares) / size + epsilon);
}

template <class T>
void turn(T* x, const T* cos, const T* sin, const T* weight, float scale, float offset, int size, int half, T* out) {
  const Ints neighbours = {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14};
  float line[512];
  for (int d = 0; d < size; d += kLanes) {
    Floats v = load(x + d) * scale;
    store(line + d, weight ? v * (load(weight + d) + offset) : v);
  }
  for (int d = 0; d < size; d += kLanes) {
    Floats swapped;
    if (half % kLanes == 0)
      swapped = load(line + (d < half ? d + half : d - half));
    else if (half == 1)
      swapped = __builtin_shuffle(load(line + d), neighbours);
    else
      for (int i = 0; i < kLanes; ++i) swapped[i] = line[d + i < half ? d + i + half : d + i - half];
    store(out + d, load(line + d) * load(cos + d) + swapped * load(sin + d));
  }
}

// Rotate one token's queries in place, and write its rotated keys and plain values to the cache.
template <class T>
void place(const Forward& f, const LayerCache& layer, int64_t token, T* qkv) {
  const int64_t heads = f.num_kv_heads, queries = heads * f.group, size = f.head_size;
  T* x = qkv + token * (queries + 2 * heads) * size;
  const T* cos = static_cast<const T*>(f.tables[2 * layer.kind]) + f.turn[token] * size;
  const T* sin = static_cast<const T*>(f.tables[2 * layer.kind + 1]) + f.turn[token] * size;
  const T* query_norm = static_cast<const T*>(layer.query_norm);
  const T* key_norm = static_cast<const T*>(layer.key_norm);
  const bool are_together = layer.norms_all_heads;
  float of_all = are_together ? normalizer(x, queries * size, layer.epsilon) : 1.0f;
  const auto turned = [&](const T* norm, int64_t head, T* into) {
    const float scale = !norm || are_together ? of_all : normalizer(x, size, layer.epsilon);
    turn(x, cos, sin, are_together ? norm + head * size : norm, scale, layer.norm_offset, size, f.half, into);
  };
  for (int64_t q = 0; q < queries; ++q, x += size) turned(query_norm, q, x);
  if (are_together) of_all = normalizer(x, heads * size, layer.epsilon);
  for (int64_t h = 0; h < heads; ++h, x += size) {
    const int64_t at = ((f.slot[token] * heads + h) * f.num_positions + f.write_position[token]) * size;
    turned(key_norm, h, static_cast<T*>(layer.keys) + at);
    T* value = static_cast<T*>(layer.values) + at;
    for (int64_t d = 0; d < size; d += kLanes) store(value + d, load(x + heads * size + d));
  }
}

// Softmax of the scores from `first` up to `num` into weights; those around them, up to a multiple of 16, become 0.
inline void softmax(float* scores, int64_t first, int64_t num, int64_t width) {
  for (int64_t j = 0; j < first; ++j) scores[j] = -std::numeric_limits<float>::infinity();
  for (int64_t j = num; j < width; ++j) scores[j] = -std::numeric_limits<float>::infinity();
  Floats highest = load(scores);
  for (int64_t j = kLanes; j < width; j += kLanes) highest = larger(load(scores + j), highest);
  float best = highest[0];
  for (int i = 1; i < kLanes; ++i) best = highest[i] > best ? highest[i] : best;
  Floats total = all(0.0f);
  for (int64_t j = 0; j < width; j += kLanes) {
    const Floats e = exponential(load(scores + j) - best);
    total += e;
    store(scores + j, e);
  }
  const float scale = 1.0f / sum(total);
  for (int64_t j = 0; j < width; j += kLanes) store(scores + j, load(scores + j) * scale);
}

// out[m] = sum_j weights[m][j] * values[j] for M queries at once, so that each value is read and widened once for all.
template <class T, int V, int M>
void blend(const T* values, const float* weights, int64_t width, int64_t num, T* const* out) {
  Floats total[M][V];
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < V; ++v) total[m][v] = all(0.0f);
  for (int64_t j = 0; j < num; ++j) {
    const T* value = values + j * V * kLanes;
    for (int v = 0; v < V; ++v) {
      const Floats x = load(value + v * kLanes);
      for (int m = 0; m < M; ++m) total[m][v] += x * weights[m * width + j];
    }
  }
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < V; ++v) store(out[m] + v * kLanes, total[m][v]);
}

constexpr int64_t kMaxQueries = 64;  // of one KV head at once

// Some tokens of one row, so few that the scores of their queries stay in the processor's cache.
struct Queries {
  int64_t first, num_tokens;  // the first of them
};

// Attention of some tokens of one row over one KV head. V vectors make a head: D = 16 V.
template <class T, int V>
void attend(const Forward& f, const LayerCache& layer, Queries tokens, int64_t head, const T* qkv, T* out) {
  constexpr int64_t size = V * kLanes;
  thread_local std::vector<float> scratch;
  const int64_t first = tokens.first, num_tokens = tokens.num_tokens;
  const int64_t num_queries = num_tokens * f.group, heads = f.num_kv_heads;
  const int64_t stride = (f.group + 2) * heads * size;
  // The part of the row that some of the queries see begins at a multiple of 16, so that sums have the same order
  // whatever is beside a query. Positions are counted from there.
  int64_t visible = 0, begin = layer.window ? f.num_positions : 0;
  for (int64_t t = 0; t < num_tokens; ++t) {
    const int64_t end = f.position[first + t] + 1;
    visible = end > visible ? end : visible;
    begin = end - layer.window < begin ? end - layer.window : begin;
  }
  if (!layer.window || begin < 0) begin = 0;
  begin = begin / kLanes * kLanes;
  if (visible > f.num_positions) visible = f.num_positions;
  visible -= begin;
  const auto seen_by = [&](int64_t m) { return f.position[first + m / f.group] + 1 - begin; };  // up to there
  const auto sees = [&](int64_t m, int64_t j) {  // some of the 16 positions from there on
    return seen_by(m) > j && (!layer.window || seen_by(m) - layer.window < j + kLanes);
  };
  const int64_t width = (visible + kLanes - 1) / kLanes * kLanes;
  scratch.resize(num_queries * (size + width) + kLanes * size);
  float *queries = scratch.data(), *scores = queries + num_queries * size, *tile = scores + num_queries * width;

  for (int64_t t = 0; t < num_tokens; ++t)
    for (int64_t g = 0; g < f.group; ++g)
      for (int v = 0; v < V; ++v)
        store(queries + (t * f.group + g) * size + v * kLanes,
              load(qkv + (first + t) * stride + (head * f.group + g) * size + v * kLanes) * f.scale);

  const int64_t offset = ((f.slot[first] * heads + head) * f.num_positions + begin) * size;
  const T *keys = static_cast<const T*>(layer.keys) + offset, *values = static_cast<const T*>(layer.values) + offset;
  for (int64_t j = 0; j < visible; j += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) {
      const T* key = keys + (j + i < visible ? j + i : visible - 1) * size;
      for (int v = 0; v < V; ++v) store(tile + i * size + v * kLanes, load(key + v * kLanes));
    }
    for (int64_t m = 0; m < num_queries; ++m) {
      if (num_tokens > 1 && !sees(m, j)) continue;  // one token sees something of each 16 positions
      Floats products[kLanes];
      for (int i = 0; i < kLanes; ++i) products[i] = load(queries + m * size) * load(tile + i * size);
      for (int v = 1; v < V; ++v) {
        const Floats q = load(queries + m * size + v * kLanes);
        for (int i = 0; i < kLanes; ++i) products[i] += q * load(tile + i * size + v * kLanes);
      }
      store(scores + m * width + j, sums(products));
    }
  }
  for (int64_t m = 0; m < num_queries; ++m) {
    const int64_t num = seen_by(m) < visible ? seen_by(m) : visible;
    int64_t from = layer.window && seen_by(m) > layer.window ? seen_by(m) - layer.window : 0;
    if (from >= num) from = num - 1;  // a token behind the last position
    if (f.softcap)
      for (int64_t j = from / kLanes * kLanes; j < num; j += kLanes) {
        float* const some = scores + m * width + j;
        store(some, capped(load(some), f.softcap));
      }
    softmax(scores + m * width, from, num, width);
  }
  constexpr int kAtOnce = V <= 4 ? 4 : 2;  // as many sums as fit into registers
  T* const row_out = out + (first * heads + head) * f.group * size;
  for (int64_t m = 0; m < num_queries; m += kAtOnce) {
    const int64_t num_now = num_queries - m < kAtOnce ? num_queries - m : kAtOnce;
    T* places[kAtOnce];
    int64_t num = 0;  // a query that sees fewer positions has weight 0 behind them
    for (int64_t i = 0; i < num_now; ++i) {
      const int64_t t = (m + i) / f.group, g = (m + i) % f.group, seen = seen_by(m + i);
      places[i] = row_out + (t * heads * f.group + g) * size;
      num = seen > num ? seen : num;
    }
    num = num < visible ? num : visible;
    const float* weights = scores + m * width;
    if (num_now == 4)
      blend<T, V, kAtOnce>(values, weights, width, num, places);
    else if (num_now == 3)
      blend<T, V, kAtOnce == 4 ? 3 : 1>(values, weights, width, num, places);
    else if (num_now == 2)
      blend<T, V, 2>(values, weights, width, num, places);
    else
      blend<T, V, 1>(values, weights, width, num, places);
  }
}

template <class T>
void attend_head(const Forward& f, const LayerCache& layer, Queries tokens, int64_t head, const T* qkv, T* out) {
  switch (f.head_size / kLanes) {
    case 1: return attend<T, 1>(f, layer, tokens, head, qkv, out);
    case 2: return attend<T, 2>(f, layer, tokens, head, qkv, out);
    case 4: return attend<T, 4>(f, layer, tokens, head, qkv, out);
    case 5: return attend<T, 5>(f, layer, tokens, head, qkv, out);
    case 6: return attend<T, 6>(f, layer, tokens, head, qkv, out);
    case 8: return attend<T, 8>(f, layer, tokens, head, qkv, out);
    case 16: return attend<T, 16>(f, layer, tokens, head, qkv, out);
  }
}

template <class T>
void attention(const Forward& f, const LayerCache& layer, T* qkv, T* out) {
#pragma omp parallel for schedule(static) if (f.num_tokens > 4)
  for (int64_t token = 0; token < f.num_tokens; ++token) place(f, layer, token, qkv);
  if (!out) return;  // the last layer of a prefill: its output is not needed
  const int64_t max_tokens = f.group < kMaxQueries ? kMaxQueries / f.group : 1;
  std::vector<Queries> queries;
  for (int64_t row = 0; row < f.num_rows; ++row)
    for (int64_t first = f.row_first[row], end = f.row_first[row + 1]; first < end; first += max_tokens)
      queries.push_back({first, end - first < max_tokens ? end - first : max_tokens});
  // Later tokens see more positions, so begin with them: the longest work first.
  const int64_t num_items = queries.size() * f.num_kv_heads;
#pragma omp parallel for schedule(dynamic, 1) if (num_items * f.num_visible > 256)
  for (int64_t item = num_items - 1; item >= 0; --item)
    attend_head(f, layer, queries[item / f.num_kv_heads], item % f.num_kv_heads, qkv, out);
}

}  // namespace
