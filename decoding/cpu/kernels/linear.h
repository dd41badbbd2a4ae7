// Matrix products of a few to a few hundred lines with a weight laid out once: y = x W^T, and the operation after it.
//
// A weight is read from memory once, in the order in which it is stored, and some lines are multiplied with it on the
// way, as many as the registers hold sums of. With more lines, a block of columns stays in the cache until all lines
// are done, while the next block is fetched. Few lines run at the bandwidth of the memory, many at the arithmetic
// speed of the cores.
//
// Every output is one sum over the inputs in their order, so the result of a line does not depend on the number of
// lines beside it. (oneDNN chooses another kernel, with another order, for another number of lines.)
//
// Shapes: N lines, I inputs, O outputs. The weight is stored in blocks of kColumns outputs, with zeros behind the last:
// for each depth of 1 (float32) or 2 (bfloat16) inputs, kColumns x depth numbers.

#pragma once

#include "codes.h"
#include "finish.h"
#include "tiles.h"

#ifdef DRAY_HAS_LINEAR
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

namespace {

#ifdef __AVX512F__
#define DRAY_LINEAR_KIND_FLOAT32 "avx512"
#else
#define DRAY_LINEAR_KIND_FLOAT32 "avx2"
#endif
#ifdef __AVX512BF16__
#define DRAY_LINEAR_KIND_BFLOAT16 "avx512-bf16"
#else
#define DRAY_LINEAR_KIND_BFLOAT16 DRAY_LINEAR_KIND_FLOAT32
#endif
constexpr int kMaxLines = 8;  // multiplied at once: with AVX-512 twelve lines fit, but are no faster

// What is prefetched: nothing, the weight that is being read, a bit ahead, or one half of the next block.
enum Fetch { kNothing, kAheadOfIt, kHalfABlock };

// One depth of inputs of one line, times one register of columns. `Input` is the format in which lines are multiplied.
template <class T>
struct Depth;

template <>
struct Depth<float> {
  typedef float Input;
  typedef float Line;
  typedef Register Weight;
  static constexpr int size = 1;
  static constexpr int lines = kWidth == 16 ? 8 : 6;  // that are multiplied at once
  static Line broadcast(const float* x) { return *x; }
  static Weight weight(const float* w) { return *reinterpret_cast<const Register*>(w); }
  static Register add(Register sum, Line x, Weight w) { return sum + w * x; }
};

#ifdef __AVX512BF16__
template <>
struct Depth<BFloat16> {
  typedef BFloat16 Input;
  typedef __m512bh Line;
  typedef __m512bh Weight;
  static constexpr int size = 2;
  static constexpr int lines = 8;
  static Line broadcast(const BFloat16* x) {
    int32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
  }
  static Weight weight(const BFloat16* w) { return (__m512bh)_mm512_loadu_si512(w); }
  static Register add(Register sum, Line x, Weight w) { return _mm512_dpbf16_ps(sum, x, w); }
};
#else
// Without an instruction for bfloat16, lines are widened to float32 beforehand, and a pair of weights on the way.
template <>
struct Depth<BFloat16> {
  typedef float Input;
  typedef const float* Line;
  struct Weight {
    Register first, second;
  };
  static constexpr int size = 2;
  static constexpr int lines = kWidth == 16 ? 8 : 5;  // four registers of weights leave room for as many sums
  static Line broadcast(const float* x) { return x; }
  static Weight weight(const BFloat16* w) {
    const Bits pairs = *reinterpret_cast<const Bits*>(w);
    return {(Register)(pairs << 16), (Register)(pairs & 0xffff0000)};
  }
  static Register add(Register sum, Line x, Weight w) { return (sum + w.first * x[0]) + w.second * x[1]; }
};
#endif

template <class T>
using Input = typename Depth<T>::Input;

// out[m] = x[m] times one block, [M, kColumns].
template <class T, int M, Fetch what>
void multiply(const Input<T>* x, int64_t inputs, const T* block, const char* fetched, float* out) {
  using D = Depth<T>;
  Register left[M], right[M];
  for (int m = 0; m < M; ++m) left[m] = right[m] = Register{};
  const int64_t depths = inputs / D::size;
  constexpr int64_t bytes = kColumns * sizeof(float);  // of the weight in a depth
  for (int64_t d = 0; d < depths; ++d, block += kColumns * D::size) {
    if (what == kAheadOfIt)
      for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(fetched + d * bytes + line, _MM_HINT_T0);
    if (what == kHalfABlock) _mm_prefetch(fetched + d * bytes / 2, _MM_HINT_T1);
    const auto w_left = D::weight(block), w_right = D::weight(block + kWidth * D::size);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const auto line = D::broadcast(x + m * inputs + d * D::size);
      left[m] = D::add(left[m], line, w_left);
      right[m] = D::add(right[m], line, w_right);
    }
  }
  for (int m = 0; m < M; ++m) {
    *reinterpret_cast<Register*>(out + m * kColumns) = left[m];
    *reinterpret_cast<Register*>(out + m * kColumns + kWidth) = right[m];
  }
}

template <class T, Fetch what>
void multiply(int lines, const Input<T>* x, int64_t inputs, const T* block, const char* fetched, float* out) {
  switch (lines) {
    case 1: return multiply<T, 1, what>(x, inputs, block, fetched, out);
    case 2: return multiply<T, 2, what>(x, inputs, block, fetched, out);
    case 3: return multiply<T, 3, what>(x, inputs, block, fetched, out);
    case 4: return multiply<T, 4, what>(x, inputs, block, fetched, out);
    case 5: return multiply<T, 5, what>(x, inputs, block, fetched, out);
    case 6: return multiply<T, 6, what>(x, inputs, block, fetched, out);
#ifdef __AVX512F__
    case 7: return multiply<T, 7, what>(x, inputs, block, fetched, out);
    case 8: return multiply<T, 8, what>(x, inputs, block, fetched, out);
#endif
    default: __builtin_trap();
  }
}

// The same, in one of `passes` over a block. Each of the first two passes prefetches one half of the next block.
template <class T>
void multiply(int lines, const Input<T>* x, int64_t inputs, const T* block, int64_t pass, int64_t passes, float* out) {
  const char* bytes = reinterpret_cast<const char*>(block);
  const int64_t size = inputs * kColumns * sizeof(T);
  if (passes == 1) return multiply<T, kAheadOfIt>(lines, x, inputs, block, bytes + kAhead, out);
  if (pass < 2) return multiply<T, kHalfABlock>(lines, x, inputs, block, bytes + size + pass * size / 2, out);
  multiply<T, kNothing>(lines, x, inputs, block, nullptr, out);
}

// The same with a weight in codes. Of several passes over a block the first decodes it. A call of its own: its memory of a
// thread would cost plain numbers a look at each block.
__attribute__((noinline)) inline void multiply_coded(const Codes& weight, int64_t block, int lines, const float* x,
                                                     int64_t pass, int64_t passes, bool is_gate, float* out) {
  thread_local std::vector<float> rooms[2];
  std::vector<float>& decoded = rooms[is_gate];
  if (passes == 1) return weight.multiply(block, lines, x, nullptr, out);
  if (decoded.size() < static_cast<size_t>(weight.inputs * kColumns)) decoded.resize(weight.inputs * kColumns);
  if (pass == 0) return weight.multiply(block, lines, x, decoded.data(), out);
  multiply<float, kNothing>(lines, x, weight.inputs, decoded.data(), nullptr, out);
}

// Multiplies `lines` lines with one block of the weight (and of its gate), and stores the finished results.
template <class T>
void run_block(const Linear& linear, int64_t block, int lines, const Input<T>* x, int64_t pass, int64_t passes,
               const T* added, T* out) {
  const int64_t size = linear.inputs * kColumns, column = block * kColumns;
  float sums[kMaxLines * kColumns], gate[kMaxLines * kColumns];
  const auto run = [&](const void* weight, int64_t form, float* into) {
    if (!form) return multiply<T>(lines, x, linear.inputs, static_cast<const T*>(weight) + block * size, pass, passes, into);
    if constexpr (std::is_same<T, float>::value) {
      multiply_coded(Codes{weight, form, linear.inputs}, block, lines, x, pass, passes, into == gate, into);
    }
  };
  if (linear.gate_weight) run(linear.gate_weight, linear.gate_form, gate);
  run(linear.weight, linear.form, sums);
  finish_block<kColumns, T>(linear, column, lines, sums, linear.gate_weight ? gate : nullptr, added, out);
}

// Returns the lines in the format in which they are multiplied; the next call may overwrite them.
template <class T>
const Input<T>* widened(const T* x, int64_t num) {
  if constexpr (std::is_same<T, Input<T>>::value) {
    return x;
  } else {
    thread_local std::vector<float> room;
    if (static_cast<int64_t>(room.size()) < num + kLanes) room.resize(num + kLanes);
    float* const wide = room.data();
#pragma omp parallel for schedule(static) if (num > 65536)
    for (int64_t i = 0; i < num; i += kLanes) {
      const int here = static_cast<int>(std::min<int64_t>(kLanes, num - i));
      store(wide + i, load(x + i, here));
    }
    return wide;
  }
}

// out [N, O] = x [N, I] W^T + bias, times silu (or gelu) of x G^T + gate bias if there is a gate, scaled, plus `added`
// unless it is null.
template <class T>
void run_linear(const Linear& linear, const T* lines, int64_t num_lines, const T* added, T* out) {
  if constexpr (std::is_same<T, BFloat16>::value)
    if (linear.form) return run_tiles(linear, lines, num_lines, added, out);
  constexpr int64_t most = Depth<T>::lines;
  const int64_t num_blocks = (linear.outputs + kColumns - 1) / kColumns;
  for (int64_t first = 0; first < num_lines; first += kLinesAtOnce) {
    const int64_t here = std::min(kLinesAtOnce, num_lines - first), passes = (here + most - 1) / most;
    const Input<T>* const x = widened(lines + first * linear.inputs, here * linear.inputs);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < num_blocks; ++block)
      for (int64_t pass = 0; pass < passes; ++pass) {
        const int64_t line = here * pass / passes, end = here * (pass + 1) / passes;
        const int64_t at = (first + line) * linear.outputs;
        run_block<T>(linear, block, static_cast<int>(end - line), x + line * linear.inputs, pass, passes,
                     added ? added + at : nullptr, out + at);
      }
  }
}

// out [num, I] = these lines of a weight, of numbers of `size` bytes; false if one of them is not there. Lines of one block
// that follow each other are read (and decoded from codes) together.
inline bool read_lines(const Linear& linear, const int64_t* lines, int64_t num, int64_t size, void* out) {
  const bool is_coded = linear.form && size == sizeof(float), is_tiled = linear.form && !is_coded;
  const int64_t columns = is_tiled ? kTileColumns : kColumns, step = is_tiled ? kStep : 1;
  const int64_t words = linear.inputs * size / 4;  // of a line: each depth has one of every column
  const int64_t stored = (linear.inputs + step - 1) / step * step * size / 4;
  float* const into = static_cast<float*>(out);  // a word may be two bfloat16: it is only moved
  std::vector<int64_t> firsts;
  for (int64_t n = 0; n < num; ++n) {
    if (lines[n] < 0 || lines[n] >= linear.outputs) return false;
    if (n == 0 || lines[n] != lines[n - 1] + 1 || lines[n] % columns == 0) firsts.push_back(n);
  }
  const int64_t num_runs = firsts.size();
  firsts.push_back(num);
  const Codes weight{linear.weight, linear.form, linear.inputs};
#pragma omp parallel if (num > 64)
  {
    std::vector<float> decoded(is_coded ? words * kColumns : 0);
    int64_t decoded_block = -1;
#pragma omp for schedule(static)
    for (int64_t run = 0; run < num_runs; ++run) {
      const int64_t n = firsts[run], here = firsts[run + 1] - n, block = lines[n] / columns;
      if (is_coded && block != decoded_block) weight.decoded(decoded_block = block, decoded.data());
      const float* from =
          is_coded ? decoded.data() : static_cast<const float*>(linear.weight) + block * columns * stored;
      for (int64_t first = 0; first < words; first += kLanes)  // a cache line of each output
        for (int64_t m = 0; m < here; ++m)
          for (int64_t i = first; i < words && i < first + kLanes; ++i)
            into[(n + m) * words + i] = from[i * columns + lines[n] % columns + m];
    }
  }
  return true;
}

}  // namespace

#endif
