// Matrix products in bfloat16 for processors with AMX, in which a line's sums have one order whatever else is in the
// batch: that of the tile unit (tile_unit.h).
//
// The unit adds 32 inputs at a time to 16 lines and 16 outputs, along the inputs alone, so lines do not meet. More than
// kFewLines lines are multiplied by tiles, two of lines by two of outputs at once. Fewer, which wait for the weight, are
// multiplied by vectors, in the same order and bit for bit the same.
//
// Layout of a weight: blocks of kTileColumns outputs; in each, for every two inputs, kTileColumns pairs. Behind the last
// output and the last input there are zeros, to whole blocks and whole steps of kStep inputs.

#pragma once

#include "finish.h"
#include "tile_unit.h"

#ifdef DRAY_HAS_LINEAR
#include <vector>

namespace {

constexpr int64_t kStep = 32;         // inputs of one instruction
constexpr int64_t kTileColumns = 32;  // outputs of a block: two tiles
constexpr int64_t kRow = 2 * kTileColumns;    // numbers of a block for two inputs
constexpr int64_t kStepBytes = kStep * kTileColumns * sizeof(BFloat16);
constexpr int64_t kTileLines = 2 * kTileRows;  // that are multiplied with a block at once
constexpr int64_t kFewLines = 8;

// What is prefetched in each step while a block is multiplied.
template <_mm_hint where>
struct Fetched {
  const char* from;
  int64_t bytes;
  void step(int64_t number) const {
    for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(from + number * bytes + line, where);
  }
};

// weights * x + sum, rounded once.
inline Register fused(Register weights, float x, Register sum) {
#ifdef __AVX512F__
  return (Register)_mm512_fmadd_ps((__m512)weights, _mm512_set1_ps(x), (__m512)sum);
#else
  return (Register)_mm256_fmadd_ps((__m256)weights, _mm256_set1_ps(x), (__m256)sum);
#endif
}

// sums [M, kTileColumns] = lines x [M, kStep * steps] times one block, added as the tile unit adds. Not inlined, since
// the compiler may move arithmetic across a change of MXCSR (Flushing).
template <int M>
__attribute__((noinline)) void multiply_few(const float* x, int64_t steps, const BFloat16* block, float* sums) {
  const Fetched<_MM_HINT_T0> ahead{reinterpret_cast<const char*>(block) + kAhead, kStepBytes};
  for (int64_t i = 0; i < M * kTileColumns; ++i) sums[i] = 0.0f;
  for (int64_t step = 0; step < steps; ++step) {
    ahead.step(step);
    for (int64_t column = 0; column < kTileColumns; column += kWidth) {
      Register even[M], odd[M];
      for (int m = 0; m < M; ++m) even[m] = odd[m] = Register{};
      const BFloat16* pairs = block + step * kStep * kTileColumns + column * 2;
      const float* input = x + step * kStep;
#pragma GCC unroll 4
      for (int k = 0; k < kStep / 2; ++k, pairs += kRow, input += 2) {
        const Bits bits = *reinterpret_cast<const Bits*>(pairs);
        const Register w_even = (Register)(bits << 16), w_odd = (Register)(bits & 0xffff0000);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          even[m] = fused(w_even, input[m * steps * kStep], even[m]);
          odd[m] = fused(w_odd, input[m * steps * kStep + 1], odd[m]);
        }
      }
      for (int m = 0; m < M; ++m) {
        Register& sum = *reinterpret_cast<Register*>(sums + m * kTileColumns + column);
        sum = sum + (even[m] + odd[m]);
      }
    }
  }
}

inline void multiply_few(int64_t lines, const float* x, int64_t steps, const BFloat16* block, float* sums) {
  switch (lines) {
    case 1: return multiply_few<1>(x, steps, block, sums);
    case 2: return multiply_few<2>(x, steps, block, sums);
    case 3: return multiply_few<3>(x, steps, block, sums);
    case 4: return multiply_few<4>(x, steps, block, sums);
    case 5: return multiply_few<5>(x, steps, block, sums);
    case 6: return multiply_few<6>(x, steps, block, sums);
    case 7: return multiply_few<7>(x, steps, block, sums);
    case 8: return multiply_few<8>(x, steps, block, sums);
    default: __builtin_trap();
  }
}

// sums [16 (or 32 if `has_two`), kTileColumns] = one or two tiles of lines, over all inputs, times one block.
template <class Unit, bool has_two>
void multiply_tiles(const BFloat16* x, int64_t steps, const BFloat16* block, Fetched<_MM_HINT_T1> fetched,
                    float* sums) {
  constexpr int64_t tile = kTileRows * kStep, row = kRow * sizeof(BFloat16), line = kTileColumns * sizeof(float);
  Unit::template zero<0>();
  Unit::template zero<1>();
  if (has_two) Unit::template zero<2>();
  if (has_two) Unit::template zero<3>();
  for (int64_t step = 0; step < steps; ++step, block += kStep * kTileColumns) {
    fetched.step(step);
    Unit::template load<4>(x + step * tile, kTileBytes);
    if (has_two) Unit::template load<5>(x + (steps + step) * tile, kTileBytes);
    Unit::template load<6>(block, row);
    Unit::template load<7>(block + kRow / 2, row);
    Unit::template multiply<0, 4, 6>();
    Unit::template multiply<1, 4, 7>();
    if (has_two) Unit::template multiply<2, 5, 6>();
    if (has_two) Unit::template multiply<3, 5, 7>();
  }
  Unit::template store<0>(sums, line);
  Unit::template store<1>(sums + kTileColumns / 2, line);
  if (has_two) Unit::template store<2>(sums + kTileRows * kTileColumns, line);
  if (has_two) Unit::template store<3>(sums + kTileRows * kTileColumns + kTileColumns / 2, line);
}

// The lines of a batch in the form in which they are multiplied, with zeros behind the last input. The next batch of the
// same thread overwrites them.
struct Batch {
  int64_t lines, steps;
  const float* few;      // [lines, kStep * steps], or null
  const BFloat16* many;  // for each 16 lines and each step one tile, with zeros behind the last line; or null

  Batch(const BFloat16* x, int64_t num_lines, int64_t inputs)
      : lines(num_lines), steps((inputs + kStep - 1) / kStep), few(nullptr), many(nullptr) {
    thread_local std::vector<char> room;
    const int64_t rows = lines <= kFewLines ? lines : (lines + kTileRows - 1) / kTileRows * kTileRows;
    const size_t size = rows * steps * kStep * (lines <= kFewLines ? sizeof(float) : sizeof(BFloat16)) + 64;
    if (room.size() < size) room.resize(size);
    char* const begin = room.data() + 63 - (reinterpret_cast<uintptr_t>(room.data()) + 63) % 64;  // of a cache line
    if (lines <= kFewLines) {
      few = reinterpret_cast<float*>(begin);
      for (int64_t n = 0; n < lines; ++n)
        for (int64_t i = 0; i < kStep * steps; i += kLanes) {
          const int num = static_cast<int>(std::max<int64_t>(0, std::min<int64_t>(kLanes, inputs - i)));
          store(reinterpret_cast<float*>(begin) + n * kStep * steps + i, load(x + n * inputs + i, num));
        }
      return;
    }
    many = reinterpret_cast<BFloat16*>(begin);
#pragma omp parallel for schedule(static) if (rows * inputs > 65536)
    for (int64_t n = 0; n < rows; ++n)
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t num = n < lines ? std::min(kStep, inputs - step * kStep) : 0, of_tile = n / kTileRows * steps + step;
        char* const row = begin + of_tile * kTile + n % kTileRows * kTileBytes;
        std::memcpy(row, x + n * inputs + step * kStep, num * sizeof(BFloat16));
        std::memset(row + num * sizeof(BFloat16), 0, (kStep - num) * sizeof(BFloat16));
      }
  }

  // Sums [kTileLines, kTileColumns] of the lines from `first` on with one block. Needs Flushing, and Configured tiles if
  // there are many lines.
  template <class Unit>
  __attribute__((noinline)) void multiply(int64_t first, const BFloat16* block, float* sums) const {
    if (few) return multiply_few(lines, few, steps, block, sums);
    const char* const bytes = reinterpret_cast<const char*>(block);
    const int64_t size = steps * kStepBytes, pass = first / kTileLines;
    Fetched<_MM_HINT_T1> fetched{bytes, 0};
    if (lines <= kTileLines) fetched = {bytes + kAhead, kStepBytes};
    else if (pass < 2) fetched = {bytes + size + pass * size / 2, kStepBytes / 2};  // a half of the next block
    const BFloat16* const x = many + first * steps * kStep;
    if (lines - first > kTileRows) return multiply_tiles<Unit, true>(x, steps, block, fetched, sums);
    multiply_tiles<Unit, false>(x, steps, block, fetched, sums);
  }
};

// The tiles of this thread are configured while this lives. The system saves what is not released at every switch of
// threads. A library that left its own tiles configured on this thread finds none, so it must look, as oneDNN does.
template <class Unit>
class Configured {
 public:
  explicit Configured(bool is_needed) : is_needed_(is_needed) {
    if (is_needed_) Unit::configure(TileConfig{});
  }
  ~Configured() {
    if (is_needed_) Unit::release();
  }
  Configured(const Configured&) = delete;

 private:
  const bool is_needed_;
};

template <class Unit>
void run_tiles(const Linear& linear, const BFloat16* x, int64_t num_lines, const BFloat16* added, BFloat16* out) {
  const int64_t num_blocks = (linear.outputs + kTileColumns - 1) / kTileColumns;
  for (int64_t first = 0; first < num_lines; first += kLinesAtOnce) {
    const Batch batch(x + first * linear.inputs, std::min(kLinesAtOnce, num_lines - first), linear.inputs);
    const int64_t size = batch.steps * kStep * kTileColumns;
#pragma omp parallel
    {
      const Flushing flushing;
      const Configured<Unit> configured(batch.many);
      alignas(64) float sums[kTileLines * kTileColumns], gate[kTileLines * kTileColumns];
#pragma omp for schedule(static) nowait
      for (int64_t block = 0; block < num_blocks; ++block)
        for (int64_t line = 0; line < batch.lines; line += kTileLines) {
          const auto run = [&](const void* weight, float* into) {
            batch.multiply<Unit>(line, static_cast<const BFloat16*>(weight) + block * size, into);
          };
          if (linear.gate_weight) run(linear.gate_weight, gate);
          run(linear.weight, sums);
          const int64_t at = (first + line) * linear.outputs;
          finish_block<kTileColumns, BFloat16>(linear, block * kTileColumns,
                                               static_cast<int>(std::min(kTileLines, batch.lines - line)), sums,
                                               linear.gate_weight ? gate : nullptr, added ? added + at : nullptr, out + at);
        }
    }
  }
}

// The forms of a Linear whose weight is laid out for tiles.
enum TileForm { kAmx = 1, kEmulated = 2 };

// out = what linear.h's run_linear gives, for a weight that is laid out for tiles.
inline void run_tiles(const Linear& linear, const BFloat16* x, int64_t num_lines, const BFloat16* added, BFloat16* out) {
  switch (linear.form) {
#ifdef DRAY_HAS_AMX
    case kAmx: return run_tiles<Amx>(linear, x, num_lines, added, out);
#endif
    case kEmulated: return run_tiles<Emulated>(linear, x, num_lines, added, out);
    default: __builtin_trap();
  }
}

// Tells whether tiles and vectors add alike, bit for bit: for ordinary numbers, for such whose products and sums are
// denormal, and for denormal inputs.
template <class Unit>
bool adds_alike() {
  constexpr int64_t num_lines = 40, inputs = 150, steps = (inputs + kStep - 1) / kStep;
  static const int exponents[4] = {120, 60, 1, 0};  // the least of seven; of products with 60 some are denormal
  uint32_t state = 1;
  const auto number = [&](int64_t kind) {
    state = state * 1664525 + 1013904223;
    const uint32_t exponent = kind == 3 ? 0 : exponents[kind] + (state >> 24) % 7;
    return BFloat16{static_cast<uint16_t>((state >> 31) << 15 | exponent << 7 | (state >> 16 & 127))};
  };
  std::vector<BFloat16> x(num_lines * inputs), block(steps * kStep * kTileColumns);
  for (int64_t i = 0; i < num_lines * inputs; ++i) x[i] = number(i / inputs % 4);
  for (int64_t i = 0; i < steps * kStep * kTileColumns; ++i) block[i] = number(i / 2 % 4);
  // Sums a bit below the least normal number, 2^-126 - 2^-75 w, some of which rounding lifts to it: inputs 0 and 2 alone.
  const uint16_t w[4] = {50 << 7, 51 << 7, 51 << 7 | 64, 52 << 7};
  std::fill(x.begin(), x.begin() + inputs, BFloat16{0});
  x[0].bits = 64 << 7, x[2].bits = 52 << 7;
  for (int64_t column = 0; column < kTileColumns; ++column) {
    block[2 * column].bits = 64 << 7;
    block[kRow + 2 * column].bits = 1 << 15 | w[column % 4];
  }

  const Flushing flushing;
  const Batch batch(x.data(), num_lines, inputs);
  std::vector<float> of_tiles(2 * kTileLines * kTileColumns);
  {
    const Configured<Unit> configured(true);
    for (int64_t line = 0; line < num_lines; line += kTileLines)
      batch.multiply<Unit>(line, block.data(), of_tiles.data() + line * kTileColumns);
  }
  for (int64_t line = 0; line < num_lines; ++line) {
    float alone[kTileLines * kTileColumns];
    Batch(x.data() + line * inputs, 1, inputs).multiply<Unit>(0, block.data(), alone);
    if (std::memcmp(alone, of_tiles.data() + line * kTileColumns, kTileColumns * sizeof(float)) != 0) return false;
  }
  return true;
}

// Returns 1 if this process has the tiles of this form, 0 if these kernels have none, -1 if they add in another order than
// vectors, -2 if the system refuses them.
inline int64_t has_tiles(int64_t form) {
#ifdef DRAY_HAS_AMX
  if (form == kAmx) return !Amx::is_permitted() ? -2 : adds_alike<Amx>() ? 1 : -1;
#endif
  return form != kEmulated ? 0 : adds_alike<Emulated>() ? 1 : -1;
}

}  // namespace

#endif
