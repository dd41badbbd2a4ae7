// Vectors of sixteen floats, by GCC's vector extensions, and the two formats of stored numbers: float32 and bfloat16.
//
// Arithmetic is float32 throughout; a number stored in bfloat16 is rounded to nearest even once.

#pragma once

#include <cstdint>

namespace {

constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t Halves __attribute__((vector_size(32), aligned(2), may_alias));

struct BFloat16 {
  uint16_t bits;
};

inline Floats load(const float* p) { return *reinterpret_cast<const Floats*>(p); }

inline Floats load(const BFloat16* p) {
  return (Floats)(__builtin_convertvector(*reinterpret_cast<const Halves*>(p), Words) << 16);
}

inline void store(float* p, Floats x) { *reinterpret_cast<Floats*>(p) = x; }

inline void store(BFloat16* p, Floats x) {
  Words bits = (Words)x;
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Words is_nan = (Words)(x != x);
  *reinterpret_cast<Halves*>(p) = __builtin_convertvector((rounded & ~is_nan) | (0x7fc0 & is_nan), Halves);
}

// Loads the first `num` of 16 numbers, with zeros behind them.
template <class T>
inline Floats load(const T* p, int num) {
  if (num == kLanes) return load(p);
  T padded[kLanes] = {};
  for (int i = 0; i < num; ++i) padded[i] = p[i];
  return load(padded);
}

template <class T>
inline void store(T* p, Floats x, int num) {
  if (num == kLanes) return store(p, x);
  T padded[kLanes];
  store(padded, x);
  for (int i = 0; i < num; ++i) p[i] = padded[i];
}

inline Floats all(float x) { return Floats{} + x; }

inline Floats larger(Floats a, Floats b) { return (Floats)(((Words)a & (Words)(a > b)) | ((Words)b & ~(Words)(a > b))); }

inline float sum(Floats x) {
  float total = 0.0f;
  for (int i = 0; i < kLanes; ++i) total += x[i];
  return total;
}

// e^x to about one unit in the last place (Cephes' expf); 0 below -87.
inline Floats exponential(Floats x) {
  const Floats clamped = larger(x, all(-87.0f));
  const Floats n = (clamped * 1.44269504f + 12582912.0f) - 12582912.0f;  // to the nearest integer
  const Floats r = clamped - n * 0.693359375f - n * -2.12194440e-4f;
  Floats y = all(1.9875691500e-4f);
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  const Floats power = (Floats)((__builtin_convertvector(n, Ints) + 127) << 23);
  return (Floats)(((Words)(y * power) & ~(Words)(x < all(-87.0f))) | (Words)(x != x));  // NaN stays NaN
}

// Returns the sums of 16 vectors as one vector, by a tree of 15 pairwise steps.
inline Floats sums(Floats* x) {
  const Ints pick[4][2] = {
      {{0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30}, {1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31}},
      {{0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29}, {2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31}},
      {{0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27}, {4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31}},
      {{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}, {8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31}},
  };
  int stride = 1;
  for (int step = 0; step < 4; ++step, stride *= 2)
    for (int i = 0; i < kLanes; i += 2 * stride)
      x[i] = __builtin_shuffle(x[i], x[i + stride], pick[step][0]) + __builtin_shuffle(x[i], x[i + stride], pick[step][1]);
  return x[0];
}

}  // namespace
