// Accept-if-equal: how many drafted tokens equal the target's own picks, and where rounding could have decided a pick.
//
// The rule is that of `verify_coupled` in decoding/sampling/rules.py. Shapes: B rows, K drafted tokens, J = K + 1.

#pragma once

#include <cstdint>

namespace {

struct VerifyInputs {
  int64_t num_rows, num_positions;
  const int64_t* token_ids;                // [B, J], the picks
  const float *best, *second, *score;      // [B, J], of the picks
  const bool* is_at_border;                // [B, J]
  const int64_t* drafted;                  // [B, K]
  int64_t drafted_row_stride, drafted_stride;
  const int64_t* num_drafted;              // [B]
  const float* temperature;                // [B]
  float close_call;                        // 0: no call is close
};

struct VerifyOutputs {
  int64_t *num_accepted, *next_token, *first_close_call;  // [B]
};

inline bool is_close_call(const VerifyInputs& in, int64_t place, float temperature) {
  const float size = __builtin_fabsf(in.score[place] * temperature) / 10.0f;
  const float margin = (in.best[place] - in.second[place]) * temperature;
  const float ulps = 4.0f * 0x1p-23f * __builtin_fabsf(in.best[place]) * temperature;
  return margin < in.close_call * (size > 1.0f ? size : 1.0f) + ulps || in.is_at_border[place];
}

inline void verify_coupled(const VerifyInputs& in, const VerifyOutputs& out) {
  for (int64_t row = 0; row < in.num_rows; ++row) {
    const int64_t first = row * in.num_positions;
    int64_t accepted = 0, close = in.num_positions;
    while (accepted < in.num_drafted[row] && accepted + 1 < in.num_positions &&
           in.token_ids[first + accepted] ==
               in.drafted[row * in.drafted_row_stride + accepted * in.drafted_stride])
      ++accepted;
    for (int64_t j = in.num_positions - 1; j >= 0 && in.close_call > 0.0f; --j)
      if (is_close_call(in, first + j, in.temperature[row])) close = j;
    out.num_accepted[row] = accepted;
    out.next_token[row] = in.token_ids[first + accepted];
    out.first_close_call[row] = close;
  }
}

}  // namespace
