// Weights of 4 and 8 bits: codes, with a scale (and a minimum) for each group of inputs, turned into float32 in registers.
//
// A weight is scale * code + minimum, rounded to float32. The product of a code and a scale of at most 24 - 8 bits (of a
// float16, or of one times a small integer) is exact in float32, so it is rounded once, fused or not. The numbers are
// those of the dequantized weight, and linear.h adds them in one order, so a product is the same, bit for bit, as with
// float32 weights.
//
// Lines are multiplied while the codes are read. Where that would be done twice, the first lines leave the
// block in the cache as float32 numbers in linear.h's layout, for the others.
//
// Layout: for each block of kColumns outputs, and each group of inputs, one record: kColumns scales, kColumns minimums
// if the format has them, and the codes. Codes of 8 bits: for each input kColumns numbers. Codes of 4 bits: for each 8
// inputs kColumns words of 32 bits, of which bits 4 j to 4 j + 3 are input j.

#pragma once

#include "vectors.h"

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))
#define DRAY_HAS_LINEAR
#include <immintrin.h>

namespace {

// The registers: 32 of 16 numbers with AVX-512, 16 of 8 numbers with AVX2. A block is two of them wide.
#ifdef __AVX512F__
constexpr int kWidth = 16;
#else
constexpr int kWidth = 8;
#endif
constexpr int kColumns = 2 * kWidth;
constexpr int64_t kLinesAtOnce = 192;  // that stay in the cache together with a block of the weight
constexpr int64_t kAhead = 8192;       // bytes: prefetching this far ahead hides the memory's latency

typedef float Register __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
typedef uint32_t Bits __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
typedef int32_t Integers __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
typedef uint16_t Float16;  // read by instructions alone

inline Register widened(const float* p) { return *reinterpret_cast<const Register*>(p); }

inline Register widened(const Float16* p) {
#ifdef __AVX512F__
  return (Register)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#else
  return (Register)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#endif
}

inline Register widened(const int8_t* p) {
#ifdef __AVX512F__
  return (Register)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  return (Register)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#endif
}

// The numbers of a format, which Python names (decoding/fused/coded_linear.py).
template <int bits, bool is_signed_nibble, bool has_minimum, class ScaleType>
struct Format {
  typedef ScaleType Scale;
  static constexpr int num_bits = bits;
  static constexpr bool is_signed = is_signed_nibble, has_min = has_minimum;
  static constexpr int64_t head = kColumns * sizeof(Scale) * (has_min ? 2 : 1);
  static constexpr int64_t bytes(int64_t group) { return head + kColumns * group * bits / 8; }
};
typedef Format<4, true, false, Float16> Signed4;
typedef Format<4, false, true, Float16> Minimum4;
typedef Format<4, false, true, float> Wide4;
typedef Format<8, false, false, Float16> Signed8;
typedef Format<8, false, true, float> Wide8;

// The code in the lowest four bits of each word, as a number.
template <class F>
inline Register nibbles(Bits words) {
#ifdef __AVX512F__
  const int first = F::is_signed ? -8 : 8;
  const __m512 table = _mm512_cvtepi32_ps(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, first, first + 1, first + 2,
                                                            first + 3, first + 4, first + 5, first + 6, first + 7));
  return (Register)_mm512_permutexvar_ps((__m512i)words, table);  // reads four bits of an index
#else
  return __builtin_convertvector(F::is_signed ? (Integers)(words << 28) >> 28 : (Integers)(words & 15), Register);
#endif
}

// Calls use(j, left, right) for input j of a group, with the weights of its two registers of columns.
template <class F, class Use>
__attribute__((always_inline)) inline void each_input(const char* record, int64_t group, Use use) {
  typedef typename F::Scale Scale;
  const Scale* const scales = reinterpret_cast<const Scale*>(record);
  const Register scale[2] = {widened(scales), widened(scales + kWidth)};
  Register minimum[2] = {};
  if (F::has_min)
    for (int side = 0; side < 2; ++side) minimum[side] = widened(scales + kColumns + side * kWidth);
  const auto weight = [&](Register code, int side) __attribute__((always_inline)) {
    return F::has_min ? scale[side] * code + minimum[side] : scale[side] * code;
  };
  const char* codes = record + F::head;
  if (F::num_bits == 8) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < group; ++j, codes += kColumns) {
      const int8_t* const here = reinterpret_cast<const int8_t*>(codes);
      use(j, weight(widened(here), 0), weight(widened(here + kWidth), 1));
    }
  } else {
    for (int64_t first = 0; first < group; first += 8, codes += 4 * kColumns) {
      const Bits* const words = reinterpret_cast<const Bits*>(codes);
      const Bits left = words[0], right = words[1];
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j)
        use(first + j, weight(nibbles<F>(left >> 4 * j), 0), weight(nibbles<F>(right >> 4 * j), 1));
    }
  }
}

// out[m] = x[m] times one block, [M, kColumns]; `keeps` writes the block's float32 numbers into `decoded`, too.
template <class F, int M, bool keeps>
void multiply_codes(const float* x, int64_t inputs, int64_t group, const char* record, float* decoded, float* out) {
  constexpr int64_t ahead = 4096;  // bytes
  Register left[M], right[M];
  for (int m = 0; m < M; ++m) left[m] = right[m] = Register{};
  const int64_t bytes = F::bytes(group);
  for (int64_t i = 0; i < inputs; i += group, record += bytes) {
    for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(record + ahead + line, _MM_HINT_T0);
    each_input<F>(record, group, [&](int64_t j, Register w_left, Register w_right) __attribute__((always_inline)) {
      if (keeps) {
        *reinterpret_cast<Register*>(decoded + (i + j) * kColumns) = w_left;
        *reinterpret_cast<Register*>(decoded + (i + j) * kColumns + kWidth) = w_right;
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        const float line = x[m * inputs + i + j];
        left[m] = left[m] + w_left * line;
        right[m] = right[m] + w_right * line;
      }
    });
  }
  for (int m = 0; m < M; ++m) {
    *reinterpret_cast<Register*>(out + m * kColumns) = left[m];
    *reinterpret_cast<Register*>(out + m * kColumns + kWidth) = right[m];
  }
}

template <class F>
void multiply_codes(int lines, const float* x, int64_t inputs, int64_t group, const char* record, float* decoded,
                    float* out) {
#define DRAY_LINES(M) \
  case M: return multiply_codes<F, M, false>(x, inputs, group, record, nullptr, out)
#define DRAY_MANY_LINES(M) \
  case M: \
    if (decoded) return multiply_codes<F, M, true>(x, inputs, group, record, decoded, out); \
    return multiply_codes<F, M, false>(x, inputs, group, record, nullptr, out)
  switch (lines) {
    DRAY_LINES(1);  // where there are several passes, each has three lines or more
    DRAY_LINES(2);
    DRAY_MANY_LINES(3);
    DRAY_MANY_LINES(4);
    DRAY_MANY_LINES(5);
    DRAY_MANY_LINES(6);
#ifdef __AVX512F__
    DRAY_MANY_LINES(7);
    DRAY_MANY_LINES(8);
#endif
    default: __builtin_trap();
  }
}

// The weights of one block as float32, kColumns numbers for each input.
template <class F>
void decode(int64_t inputs, int64_t group, const char* record, float* out) {
  for (int64_t i = 0; i < inputs; i += group, record += F::bytes(group))
    each_input<F>(record, group, [&](int64_t j, Register w_left, Register w_right) __attribute__((always_inline)) {
      *reinterpret_cast<Register*>(out + (i + j) * kColumns) = w_left;
      *reinterpret_cast<Register*>(out + (i + j) * kColumns + kWidth) = w_right;
    });
}

// A weight in codes: `form` is the number of its format, plus 256 times the inputs of a group.
struct Codes {
  const void* records;
  int64_t form, inputs;

  template <class Do>
  void with_format(int64_t block, Do act) const {
    const int64_t group = form >> 8, groups = inputs / group;
    const char* const bytes = static_cast<const char*>(records);
    switch (form & 255) {
      case 1: return act(Signed4{}, group, bytes + block * groups * Signed4::bytes(group));
      case 2: return act(Minimum4{}, group, bytes + block * groups * Minimum4::bytes(group));
      case 3: return act(Wide4{}, group, bytes + block * groups * Wide4::bytes(group));
      case 4: return act(Signed8{}, group, bytes + block * groups * Signed8::bytes(group));
      case 5: return act(Wide8{}, group, bytes + block * groups * Wide8::bytes(group));
      default: __builtin_trap();
    }
  }
  void multiply(int64_t block, int lines, const float* x, float* decoded, float* out) const {
    with_format(block, [&](auto f, int64_t group, const char* record) {
      multiply_codes<decltype(f)>(lines, x, inputs, group, record, decoded, out);
    });
  }
  void decoded(int64_t block, float* out) const {
    with_format(block, [&](auto f, int64_t group, const char* record) { decode<decltype(f)>(inputs, group, record, out); });
  }
};

}  // namespace

#endif
