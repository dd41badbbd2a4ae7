// Root mean square normalization of each line of E numbers (a multiple of 16).

#pragma once

#include "vectors.h"

namespace {

template <class T>
void rms_norm(const T* x, const T* weight, float epsilon, int64_t num_rows, int64_t size, T* out) {
#pragma omp parallel for schedule(static) if (num_rows > 16)
  for (int64_t row = 0; row < num_rows; ++row) {
    const T* in = x + row * size;
    Floats squares = all(0.0f);
    for (int64_t d = 0; d < size; d += kLanes) squares += load(in + d) * load(in + d);
    const float scale = 1.0f / __builtin_sqrtf(sum(squares) / size + epsilon);
    for (int64_t d = 0; d < size; d += kLanes) store(out + row * size + d, load(in + d) * scale * load(weight + d));
  }
}

}  // namespace
