// Root mean square normalization of each line of E numbers (a multiple of 16).

#pragma once

#include "vectors.h"

namespace {

struct Norm {
  const void* weight;     // [E], or null: there is no norm
  float epsilon, offset;  // lines are multiplied by offset + weight
  int64_t is_centered;    // whether the mean is taken off before
};

// out = norm(x), plus `added` unless it is null.
template <class T>
void rms_norm(const Norm& norm, const T* x, int64_t num_rows, int64_t size, const T* added, T* out) {
  const T* weight = static_cast<const T*>(norm.weight);
#pragma omp parallel for schedule(static) if (num_rows > 16)
  for (int64_t row = 0; row < num_rows; ++row) {
    const T* in = x + row * size;
    float mean = 0.0f;
    if (norm.is_centered) {
      Floats total = all(0.0f);
      for (int64_t d = 0; d < size; d += kLanes) total += load(in + d);
      mean = sum(total) / size;
    }
    Floats squares = all(0.0f);
    for (int64_t d = 0; d < size; d += kLanes) squares += (load(in + d) - mean) * (load(in + d) - mean);
    const float scale = 1.0f / __builtin_sqrtf(sum(squares) / size + norm.epsilon);
    for (int64_t d = 0; d < size; d += kLanes) {
      Floats y = (load(in + d) - mean) * scale * (load(weight + d) + norm.offset);
      if (added) y += load(added + row * size + d);
      store(out + row * size + d, y);
    }
  }
}

}  // namespace
