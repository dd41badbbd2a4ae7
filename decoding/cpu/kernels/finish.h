// What follows a matrix product: bias, gate, scale and what is added to it, before the one rounding to the stored format.
//
// Shapes: O outputs. Sums of a block of columns stand line by line.

#pragma once

#include <algorithm>

#include "vectors.h"

namespace {

struct Linear {
  const void *weight, *bias;            // bias [O], or null
  const void *gate_weight, *gate_bias;  // of the gate that multiplies the result, or null
  int64_t inputs, outputs;
  int64_t form, gate_form;  // of a weight in codes (codes.h) or laid out for tiles (tiles.h), or 0
  float scale;              // multiplies the result before anything is added to it
  int32_t gate_is_gelu;     // else the gate is silu
};

inline Floats silu(Floats x) { return x / (1.0f + exponential(-larger(x, all(-87.0f)))); }

// y *= gelu(x), in the form that is computed with tanh: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2. It is a
// function of its own, since inlined beside silu it takes registers from that: 3 % of all layers with AVX2.
__attribute__((noinline)) inline void multiply_by_gelu(Floats& y, const Floats& x) {
  const Floats twice = x * (1.5957691216f + 0.0713548163f * x * x);
  y *= x / (1.0f + exponential(-larger(twice, all(-87.0f))));
}

// Finishes and stores the sums of 16 columns, of which `num` exist: applies bias, gate and scale, and adds `added`.
template <class T>
void finish(Floats y, const Linear& linear, const float* gate, const T* added, int64_t column, int num, T* out) {
  if (linear.bias) y += load(static_cast<const T*>(linear.bias) + column, num);
  if (gate) {
    Floats g = load(gate);
    if (linear.gate_bias) g += load(static_cast<const T*>(linear.gate_bias) + column, num);
    if (linear.gate_is_gelu)
      multiply_by_gelu(y, g);
    else
      y *= silu(g);
  }
  if (linear.scale != 1.0f) y *= linear.scale;  // testing costs less than multiplying all lanes
  if (added) y += load(added, num);
  store(out, y, num);
}

// Finishes and stores the sums [lines, columns] of the outputs from `column` on, as many as exist. `gate`: sums of the
// gate, or null; `added` and `out` begin at the block's first line.
template <int64_t columns, class T>
void finish_block(const Linear& linear, int64_t column, int lines, const float* sums, const float* gate, const T* added,
                  T* out) {
  for (int m = 0; m < lines; ++m)
    for (int64_t c = 0; c < columns && column + c < linear.outputs; c += kLanes) {
      const int num = static_cast<int>(std::min<int64_t>(kLanes, linear.outputs - column - c));
      const int64_t at = m * linear.outputs + column + c;
      finish<T>(load(sums + m * columns + c), linear, gate ? gate + m * columns + c : nullptr,
                added ? added + at : nullptr, column + c, num, out + at);
    }
}

}  // namespace
