// The short convolution of layers that keep a window of each row: a sum over the last K columns of each channel.
//
// The columns before a row's first token come from a kept window. The window behind a token is written where it is kept.
//
// Shapes: N tokens, B rows, E entries, C channels (a multiple of 16, or not), K columns of the weight.

#pragma once

#include "vectors.h"

namespace {

struct Convolution {
  int64_t num_rows, num_channels, size, has_silu;
  const int64_t* row_first;   // [B + 1]: row b has the tokens row_first[b] up to row_first[b + 1]
  const int64_t* read;        // [B]: the entry of the window before the first token; -1: it is zero
  const int64_t* written;     // [N]: the entry for the window behind the token; -1: it is not kept
  const float *weight, *bias; // [K, C], and [C] or null
};

constexpr int64_t kChannelsAtOnce = 256;

template <class T>
void convolve(const Convolution& c, const T* x, T* windows, T* out) {  // [N, C], [E, K - 1, C], [N, C]
  const int64_t num_blocks = (c.num_channels + kChannelsAtOnce - 1) / kChannelsAtOnce, before = c.size - 1;
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t row = 0; row < c.num_rows; ++row)
    for (int64_t block = 0; block < num_blocks; ++block) {
      const int64_t end = (block + 1) * kChannelsAtOnce < c.num_channels ? (block + 1) * kChannelsAtOnce : c.num_channels;
      const int64_t first = c.row_first[row];
      const T* kept = c.read[row] < 0 ? nullptr : windows + c.read[row] * before * c.num_channels;
      for (int64_t channel = block * kChannelsAtOnce; channel < end; channel += kLanes) {
        const int width = end - channel < kLanes ? end - channel : kLanes;
        // The column `back` tokens behind token n; columns before the row are those of the window.
        auto column = [&](int64_t n, int64_t back) {
          const int64_t place = n - first - back;
          if (place >= 0) return load(x + (n - back) * c.num_channels + channel, width);
          return kept ? load(kept + (before + place) * c.num_channels + channel, width) : all(0.0f);
        };
        for (int64_t n = first; n < c.row_first[row + 1]; ++n) {
          Floats sum = c.bias ? load(c.bias + channel, width) : all(0.0f);
          for (int64_t j = 0; j < c.size; ++j)
            sum += column(n, before - j) * load(c.weight + j * c.num_channels + channel, width);
          if (c.has_silu) sum = sum / (exponential(-sum) + 1.0f);
          store(out + n * c.num_channels + channel, sum, width);
        }
        for (int64_t n = first; n < c.row_first[row + 1]; ++n)
          if (c.written[n] >= 0)
            for (int64_t j = 0; j < before; ++j)
              store(windows + (c.written[n] * before + j) * c.num_channels + channel, column(n, before - 1 - j), width);
      }
    }
}

}  // namespace
