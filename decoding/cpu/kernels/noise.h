// The noise of decoding/noise.py: hashes, and the exponential numbers that are made of them.

#pragma once

#include "vectors.h"

namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
constexpr int64_t kBlock = 64;  // tokens that share a bound on their noise

inline uint64_t mixed(uint64_t x) {  // splitmix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// -u of a uniform number u that is made of a hash, the same bits as in decoding/noise.py.
inline float minus_uniform(uint64_t hash) {
  const float minus_u = float((double(hash >> 11) + 0.5) * -0x1p-53);
  return minus_u < 0x1p-24f - 1.0f ? 0x1p-24f - 1.0f : minus_u;
}

// ln(x) of positive normal numbers, to about one unit in the last place (Cephes' logf).
inline Floats logarithm(Floats x) {
  const Ints exponent = (Ints)(((Words)x - 0x3f3504f3u) >> 23);  // as a byte; so that the rest lies from 0.707 to 1.414
  const Ints power = (exponent << 24) >> 24;
  const Floats f = (Floats)((Ints)x - (power << 23)) - 1.0f;
  const Floats z = f * f, n = __builtin_convertvector(power, Floats);
  Floats y = all(7.0376836292e-2f);
  for (const float c : {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f, -1.6668057665e-1f,
                        2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f})
    y = y * f + c;
  y = y * f * z - n * 2.12194440e-4f - z * 0.5f;
  return f + y + n * 0.693359375f;
}

// -ln(1 - u) of numbers -u, which are above -1.
inline Floats exponential_of(Floats minus_u) {
  const Floats w = minus_u + 1.0f;
  return ((w - 1.0f) - minus_u) / w - logarithm(w);
}

}  // namespace
