// Matrix products of a few to a few hundred lines with a weight laid out once: y = x W^T, and the operation after it.
//
// A weight is read from memory once, in the order in which it is stored, and up to eight lines are multiplied with it on
// the way. With more lines, a block of columns stays in the cache until all lines are done, while the next block is
// fetched. Few lines run at the bandwidth of the memory, many at the arithmetic speed of the cores.
//
// Every output is one sum over the inputs in their order, so the result of a line does not depend on the number of lines
// beside it. (oneDNN chooses another kernel, with another order, for another number of lines.)
//
// Shapes: N lines, I inputs, O outputs. The weight is stored in blocks of 32 outputs, with zeros behind the last: for
// each depth of 1 (float32) or 2 (bfloat16) inputs, 32 x depth numbers.

#pragma once

#include "vectors.h"

#if defined(__AVX512F__) && defined(__AVX512BF16__)
#define DRAY_HAS_LINEAR
#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace {

constexpr int kColumns = 32;           // of a block: two vectors
constexpr int kMaxLines = 8;          // multiplied at once: twelve fit into the registers, but are no faster
constexpr int64_t kLinesAtOnce = 192;  // that stay in the cache together with a block of the weight
constexpr int64_t kAhead = 8192;       // bytes: prefetching this far ahead hides the memory's latency

// What is prefetched: nothing, the weight that is being read, a bit ahead, or one half of the next block.
enum Fetch { kNothing, kAheadOfIt, kHalfABlock };

// One depth of inputs of one line, times 16 columns.
template <class T>
struct Depth;

template <>
struct Depth<float> {
  static constexpr int size = 1;
  static __m512 broadcast(const float* x) { return _mm512_set1_ps(*x); }
  static __m512 weight(const float* w) { return _mm512_loadu_ps(w); }
  static __m512 add(__m512 sum, __m512 x, __m512 w) { return _mm512_fmadd_ps(x, w, sum); }
};

template <>
struct Depth<BFloat16> {
  static constexpr int size = 2;
  static __m512bh broadcast(const BFloat16* x) {
    int32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
  }
  static __m512bh weight(const BFloat16* w) { return (__m512bh)_mm512_loadu_si512(w); }
  static __m512 add(__m512 sum, __m512bh x, __m512bh w) { return _mm512_dpbf16_ps(sum, x, w); }
};

// out[m] = x[m] times one block, [M, 32].
template <class T, int M, Fetch what>
void multiply(const T* x, int64_t inputs, const T* block, const char* fetched, float* out) {
  using D = Depth<T>;
  __m512 left[M], right[M];
  for (int m = 0; m < M; ++m) left[m] = right[m] = _mm512_setzero_ps();
  const int64_t depths = inputs / D::size;
  for (int64_t d = 0; d < depths; ++d, block += kColumns * D::size) {
    if (what == kAheadOfIt) {
      _mm_prefetch(fetched + d * 128, _MM_HINT_T0);
      _mm_prefetch(fetched + d * 128 + 64, _MM_HINT_T0);
    }
    if (what == kHalfABlock) _mm_prefetch(fetched + d * 64, _MM_HINT_T1);
    const auto w_left = D::weight(block), w_right = D::weight(block + kLanes * D::size);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const auto line = D::broadcast(x + m * inputs + d * D::size);
      left[m] = D::add(left[m], line, w_left);
      right[m] = D::add(right[m], line, w_right);
    }
  }
  for (int m = 0; m < M; ++m) {
    _mm512_storeu_ps(out + m * kColumns, left[m]);
    _mm512_storeu_ps(out + m * kColumns + kLanes, right[m]);
  }
}

template <class T, Fetch what>
void multiply(int lines, const T* x, int64_t inputs, const T* block, const char* fetched, float* out) {
  switch (lines) {
    case 1: return multiply<T, 1, what>(x, inputs, block, fetched, out);
    case 2: return multiply<T, 2, what>(x, inputs, block, fetched, out);
    case 3: return multiply<T, 3, what>(x, inputs, block, fetched, out);
    case 4: return multiply<T, 4, what>(x, inputs, block, fetched, out);
    case 5: return multiply<T, 5, what>(x, inputs, block, fetched, out);
    case 6: return multiply<T, 6, what>(x, inputs, block, fetched, out);
    case 7: return multiply<T, 7, what>(x, inputs, block, fetched, out);
    case 8: return multiply<T, 8, what>(x, inputs, block, fetched, out);
  }
}

// The same, in one of `passes` over a block. Each of the first two passes prefetches one half of the next block.
template <class T>
void multiply(int lines, const T* x, int64_t inputs, const T* block, int64_t pass, int64_t passes, float* out) {
  const char* bytes = reinterpret_cast<const char*>(block);
  const int64_t size = inputs * kColumns * sizeof(T);
  if (passes == 1) return multiply<T, kAheadOfIt>(lines, x, inputs, block, bytes + kAhead, out);
  if (pass < 2) return multiply<T, kHalfABlock>(lines, x, inputs, block, bytes + size + pass * size / 2, out);
  multiply<T, kNothing>(lines, x, inputs, block, nullptr, out);
}

struct Linear {
  const void *weight, *bias;            // bias [O], or null
  const void *gate_weight, *gate_bias;  // of the gate that multiplies the result, or null
  int64_t inputs, outputs;
};

inline Floats silu(Floats x) { return x / (1.0f + exponential(-larger(x, all(-87.0f)))); }

// Finishes and stores the sums of 16 columns, of which `num` exist: applies bias and gate, and adds `added`.
template <class T>
void finish(Floats y, const Linear& linear, const float* gate, const T* added, int64_t column, int num, T* out) {
  if (linear.bias) y += load(static_cast<const T*>(linear.bias) + column, num);
  if (gate) {
    Floats g = load(gate);
    if (linear.gate_bias) g += load(static_cast<const T*>(linear.gate_bias) + column, num);
    y *= silu(g);
  }
  if (added) y += load(added, num);
  store(out, y, num);
}

// Multiplies `lines` lines with one block of the weight (and of its gate), and stores the finished results.
template <class T>
void run_block(const Linear& linear, int64_t block, int lines, const T* x, int64_t pass, int64_t passes, const T* added,
               T* out) {
  const int64_t size = linear.inputs * kColumns, column = block * kColumns;
  float sums[kMaxLines * kColumns], gate[kMaxLines * kColumns];
  const auto run = [&](const void* weight, float* into) {
    multiply<T>(lines, x, linear.inputs, static_cast<const T*>(weight) + block * size, pass, passes, into);
  };
  if (linear.gate_weight) run(linear.gate_weight, gate);
  run(linear.weight, sums);
  for (int m = 0; m < lines; ++m)
    for (int64_t c = 0; c < kColumns && column + c < linear.outputs; c += kLanes) {
      const int num = static_cast<int>(std::min<int64_t>(kLanes, linear.outputs - column - c));
      const int64_t at = m * linear.outputs + column + c;
      finish<T>(load(sums + m * kColumns + c), linear, linear.gate_weight ? gate + m * kColumns + c : nullptr,
                added ? added + at : nullptr, column + c, num, out + at);
    }
}

// out [N, O] = x [N, I] W^T + bias, times silu(x G^T + gate bias) if there is a gate, plus `added` unless it is null.
template <class T>
void run_linear(const Linear& linear, const T* x, int64_t num_lines, const T* added, T* out) {
  const int64_t num_blocks = (linear.outputs + kColumns - 1) / kColumns;
  for (int64_t first = 0; first < num_lines; first += kLinesAtOnce) {
    const int64_t here = std::min(kLinesAtOnce, num_lines - first), passes = (here + kMaxLines - 1) / kMaxLines;
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < num_blocks; ++block)
      for (int64_t pass = 0; pass < passes; ++pass) {
        const int64_t line = first + here * pass / passes, end = first + here * (pass + 1) / passes;
        run_block<T>(linear, block, static_cast<int>(end - line), x + line * linear.inputs, pass, passes,
                     added ? added + line * linear.outputs : nullptr, out + line * linear.outputs);
      }
  }
}

}  // namespace

#endif
