// Soft caps: numbers become cap * tanh(number / cap), so that none is beyond the cap.

#pragma once

#include "vectors.h"

namespace {

// To about one unit in the last place (Cephes' tanhf).
inline Floats hyperbolic_tangent(Floats x) {
  const Floats size = larger(x, -x), z = x * x;
  Floats y = all(-5.70498872745e-3f);
  y = y * z + 2.06390887954e-2f;
  y = y * z - 5.37397155531e-2f;
  y = y * z + 1.33314422036e-1f;
  y = y * z - 3.33332819422e-1f;
  const Floats near = y * z * x + x;
  const Floats far = 1.0f - 2.0f / (exponential(2.0f * -larger(-size, all(-40.0f))) + 1.0f);
  const Words is_near = (Words)(size < 0.625f) | (Words)(x != x), sign = (Words)x & 0x80000000;
  return (Floats)((is_near & (Words)near) | (~is_near & ((Words)far | sign)));
}

inline Floats capped(Floats x, float cap) { return cap * hyperbolic_tangent(x / cap); }

// Replaces `num` numbers by their capped ones.
template <class T>
void cap_all(T* x, int64_t num, float cap) {
#pragma omp parallel for schedule(static) if (num > 65536)
  for (int64_t i = 0; i < num; i += kLanes) {
    const int here = static_cast<int>(num - i < kLanes ? num - i : kLanes);
    store(x + i, capped(load(x + i, here), cap), here);
  }
}

}  // namespace
