// Picks: the token with the best noised score at each position, without reading the noise of tokens that cannot win.
//
//     pick = argmax over the allowed tokens of   logit / temperature + Gumbel noise      (greedy: without noise)
//
// The noise is that of decoding/noise.py: a token's number is a function of key, position and token id, and one number
// bounds a block of 64 tokens. Logarithms here only tell which tokens could be the best two. Their numbers are computed
// by torch, so they are the same bits on every path; `finish_picks` then chooses among them.
//
// Shapes: B rows, J positions, V vocabulary, W words of 32 token ids, C candidates.

#pragma once

#include "candidates.h"

namespace {

struct PickInputs {
  const void* logits;  // [B, J, V], the last dimension dense
  int64_t row_stride, position_stride;
  int64_t num_rows, num_positions, vocab_size;
  const float* temperature;  // [B]
  const bool* samples;       // [B]; false: greedy, and then the temperature is 1
  const int64_t* keys;       // [B], of the noise
  const int64_t* lengths;    // [B]; position j of a row is token number lengths + first + j
  int64_t first, stream, num_streams;
  const uint32_t* masks;     // [R, J, W]: bit i of word w is set if token 32 * w + i is allowed; null: all are
  const int64_t* mask_rows;  // [B]: the number in `masks` of a row's own, or -1 where all are allowed; null: its own number
  int64_t num_words;
};

// The picks [B * J], and the candidates [B * J, C] of the positions whose picks are not known yet.
struct PickOutputs {
  int64_t* token_ids;
  float *best, *second, *score;
  bool* is_finite;
  int64_t* num_candidates;  // 0 where the pick is known
  int64_t* candidate_ids;
  float *candidate_scores, *minus_u, *minus_u_of_block;  // -ln(1 - u) is an exponential number

  void write(int64_t place, const BestTwo& found) const {
    token_ids[place] = found.id;
    best[place] = found.best, second[place] = found.second, score[place] = found.score;
  }

  void write(int64_t place, const Candidates& found) const {
    num_candidates[place] = found.num;
    for (int64_t i = 0; i < kCandidates; ++i) {  // numbers are computed from those behind the last one, too
      const Candidate one = i < found.num ? found.list[i] : Candidate{0, 0.0f, 0.0f, -0.5f, -0.5f};
      const int64_t to = place * kCandidates + i;
      candidate_ids[to] = one.id, candidate_scores[to] = one.score;
      minus_u[to] = one.minus_u, minus_u_of_block[to] = one.minus_u_of_block;
    }
  }
};

// Picks at each position, or lists the candidates. Returns how many positions have candidates, or -1 if one has too many,
// or has none since all its scores overflow: torch's operations must do then.
template <class T>
int64_t begin_picks(const PickInputs& in, const PickOutputs& out) {
  const int64_t num_places = in.num_rows * in.num_positions;
  int64_t num_open = 0, num_unknown = 0;
#pragma omp parallel if (num_places * in.vocab_size > 65536) reduction(+ : num_open, num_unknown)
  {
    Blocks blocks((in.vocab_size + kBlock - 1) / kBlock);
#pragma omp for schedule(static)
    for (int64_t place = 0; place < num_places; ++place) {
      const int64_t row = place / in.num_positions, j = place % in.num_positions;
      const int64_t mask_row = !in.masks ? -1 : in.mask_rows ? in.mask_rows[row] : row;
      const Position<T> at = {static_cast<const T*>(in.logits) + row * in.row_stride + j * in.position_stride,
                              mask_row < 0 ? nullptr : in.masks + (mask_row * in.num_positions + j) * in.num_words,
                              in.vocab_size};
      out.num_candidates[place] = 0;
      out.is_finite[place] = find_largest_logits(at, blocks);
      if (!out.is_finite[place]) {
        out.write(place, {kNever, kNever, kNever, 0});
      } else if (!in.samples[row]) {
        out.write(place, best_two(at, blocks));
      } else {
        const uint64_t number = uint64_t((in.lengths[row] + in.first + j) * in.num_streams + in.stream);
        const uint64_t key = mixed(uint64_t(in.keys[row]) + mixed(number * kGolden));
        const Candidates found = find_candidates(at, in.temperature[row], key, blocks);
        num_unknown += found.is_full || !found.num;
        num_open += 1;
        out.write(place, found);
      }
    }
  }
  return num_unknown ? -1 : num_open;
}

// Chooses among the candidates by their noised scores [B * J, C].
inline void finish_picks(const PickOutputs& out, int64_t num_places, const float* noised) {
  for (int64_t place = 0; place < num_places; ++place) {
    if (!out.num_candidates[place]) continue;
    BestTwo found;
    for (int64_t i = place * kCandidates; i < place * kCandidates + out.num_candidates[place]; ++i)
      found.see(noised[i], out.candidate_scores[i], out.candidate_ids[i]);
    out.write(place, found);
  }
}

}  // namespace
