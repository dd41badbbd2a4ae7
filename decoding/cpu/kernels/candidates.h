// Candidates: the tokens of one position that could have one of the two best noised scores.
//
// A block's largest logit and its largest noise bound what is in it, so few blocks are read, and few noises are made.
//
// Shapes: V vocabulary, N blocks of it, W words of 32 token ids.

#pragma once

#include <vector>

#include "noise.h"
#include "vectors.h"

namespace {

constexpr int kCandidates = 8;
constexpr float kNever = -__builtin_inff();

// The best two of the scores that it has seen.
struct BestTwo {
  float best = kNever, second = kNever, score = kNever;
  int64_t id = -1;

  void see(float noised, float plain, int64_t token) {  // tokens come in the order of their ids
    if (noised > best || id < 0) {
      second = best;
      best = noised, score = plain, id = token;
    } else if (noised > second) {
      second = noised;
    }
  }
};

// One position's logits, and which tokens are allowed there.
template <class T>
struct Position {
  const T* logits;
  const uint32_t* mask;  // null: all are allowed
  int64_t vocab_size;

  bool allows(int64_t token) const { return !mask || (mask[token >> 5] >> (token & 31) & 1); }

  float logit(int64_t token) const { return load(logits + token, 1)[0]; }

  // The logits of 16 tokens from `token` on, with -inf for those that are not allowed or beyond the vocabulary.
  Floats allowed(int64_t token) const {
    const Words lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int64_t left = vocab_size - token;
    const Floats x = load(logits + token, left < kLanes ? int(left) : kLanes);
    if (!mask && left >= kLanes) return x;
    uint32_t bits = mask ? mask[token >> 5] >> (token & 16) : ~0u;
    if (left < kLanes) bits &= (1u << left) - 1;
    const Words keep = 0u - ((Words{} + bits) >> lane & 1u);
    return (Floats)(((Words)x & keep) | ((Words)all(kNever) & ~keep));
  }
};

template <>
inline float Position<float>::logit(int64_t token) const {
  return logits[token];
}

// What is known of the blocks of a position.
struct Blocks {
  int64_t num;
  std::vector<float> logit, noise;  // the largest of a block; whole vectors of noise are written
  std::vector<uint64_t> hash;

  explicit Blocks(int64_t num) : num(num), logit(num), noise(num + kLanes), hash(num) {}

  // The token that has the block's largest noise; it may lie beyond the vocabulary.
  int64_t holder(int64_t n) const { return n * kBlock + int64_t(hash[n] & (kBlock - 1)); }
};

// Finds the largest logit of each block; returns whether all are numbers and the largest one is finite.
template <class T>
inline bool find_largest_logits(const Position<T>& at, Blocks& blocks) {
  Words is_nan = {};
  float best = kNever;
  for (int64_t n = 0; n < blocks.num; ++n) {
    Floats found = all(kNever);
    for (int64_t token = n * kBlock; token < (n + 1) * kBlock && token < at.vocab_size; token += kLanes) {
      const Floats x = at.allowed(token);
      is_nan |= (Words)(x != x);
      found = larger(x, found);
    }
    float largest = found[0];
    for (int i = 1; i < kLanes; ++i) largest = found[i] > largest ? found[i] : largest;
    blocks.logit[n] = largest;
    best = largest > best ? largest : best;
  }
  uint32_t any_nan = 0;
  for (int i = 0; i < kLanes; ++i) any_nan |= is_nan[i];
  return !any_nan && best - best == 0.0f;
}

// Draws the largest noise of each block, to a few units in the last place.
inline void find_largest_noise(uint64_t key, Blocks& blocks) {
  for (int64_t n = 0; n < blocks.num; ++n) blocks.hash[n] = mixed(key + uint64_t(n + 1) * kGolden);
  for (int64_t n = 0; n < blocks.num; ++n) blocks.noise[n] = minus_uniform(blocks.hash[n]);
  for (int64_t n = 0; n < blocks.num; n += kLanes)
    store(&blocks.noise[n], -logarithm(exponential_of(load(&blocks.noise[n])) / kBlock));
}

// The pick of a greedy position, sought in the blocks that could have one of the best two.
template <class T>
inline BestTwo best_two(const Position<T>& at, const Blocks& blocks) {
  BestTwo of_blocks, found;
  for (int64_t n = 0; n < blocks.num; ++n) of_blocks.see(blocks.logit[n], 0.0f, n);
  for (int64_t n = 0; n < blocks.num; ++n) {
    if (blocks.logit[n] < of_blocks.second || blocks.logit[n] == kNever) continue;
    for (int64_t token = n * kBlock; token < (n + 1) * kBlock && token < at.vocab_size; ++token)
      if (at.allows(token)) found.see(at.logit(token), at.logit(token), token);
  }
  return found;
}

// More than the two ways to the same noised score, by these logarithms and by torch's, differ by.
inline float slack(float x) { return 1e-4f + 1e-6f * __builtin_fabsf(x); }

struct Candidate {
  int64_t id;
  float noised, score, minus_u, minus_u_of_block;
};

// The candidates of a position so far, in the order of their ids.
struct Candidates {
  Candidate list[kCandidates];
  int64_t num = 0;
  bool is_full = false;  // there are more than the list can hold
  float best = kNever, second = kNever;
  float floor;  // below it no token can be one of the best two

  explicit Candidates(float known) : floor(known - slack(known)) {}

  void see(const Candidate& one) {
    if (!(one.noised >= floor)) return;
    if (one.noised > best) second = best, best = one.noised;
    else if (one.noised > second) second = one.noised;
    if (second - slack(second) > floor) floor = second - slack(second);
    if (num == kCandidates) drop();
    if (num < kCandidates) list[num++] = one;
    else is_full = true;
  }

  void drop() {  // those that cannot be one of the best two any more
    int64_t kept = 0;
    for (int64_t i = 0; i < num; ++i)
      if (list[i].noised >= floor) list[kept++] = list[i];
    num = kept;
  }
};

// Finds the tokens that could be one of the best two of a position that samples.
template <class T>
inline Candidates find_candidates(const Position<T>& at, float temperature, uint64_t key, Blocks& blocks) {
  find_largest_noise(key, blocks);
  // The noised scores of the tokens with the largest noise are known now. The second best of them bounds the best two.
  BestTwo known;
  for (int64_t n = 0; n < blocks.num; ++n) {
    const int64_t holder = blocks.holder(n);
    if (holder < at.vocab_size && at.allows(holder)) known.see(at.logit(holder) / temperature + blocks.noise[n], 0.0f, n);
  }
  Candidates found(known.second);
  const uint64_t token_key = mixed(key);
  for (int64_t n = 0; n < blocks.num && !found.is_full; ++n) {
    const float noise = blocks.noise[n];
    if (blocks.logit[n] == kNever || !(blocks.logit[n] / temperature + noise >= found.floor)) continue;
    const int64_t holder = blocks.holder(n);
    const float of_block = minus_uniform(blocks.hash[n]), least = exponential_of(all(of_block))[0] / kBlock;
    for (int64_t start = n * kBlock; start < (n + 1) * kBlock && start < at.vocab_size; start += kLanes) {
      const Floats score = at.allowed(start) / temperature;
      const Ints could_win = score + noise >= found.floor;
      for (int lane = 0; lane < kLanes; ++lane) {
        if (!could_win[lane] || score[lane] == kNever) continue;
        const int64_t id = start + lane;
        // To the least number of the block nothing is added for its holder: log(1 - 0) is 0.
        const float minus_u = id == holder ? 0.0f : minus_uniform(mixed(token_key + uint64_t(id + 1) * kGolden));
        const float noised = score[lane] - logarithm(exponential_of(all(minus_u)) + least)[0];
        found.see({id, noised, score[lane], minus_u, of_block});
      }
    }
  }
  found.drop();
  return found;
}

}  // namespace
