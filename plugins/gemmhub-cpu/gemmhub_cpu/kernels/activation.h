// The activations of the epilogue, on the vectors of the header that is included before, vector.h or x86_64/vector_512.h: each
// to within the bound of gemmhub.epilogues, which is eight roundings of the argument. NaN stays NaN; the limits at the
// infinities are exact. No step is subnormal, which would take the processor hundreds of cycles.
#pragma once

#include "gemm.h"

namespace {

using namespace gemmhub;

// (((first x + next) x + ...) x + last.
inline Floats polynomial(Floats, Floats sum) { return sum; }
template <class... Factors>
inline Floats polynomial(Floats x, Floats sum, float factor, Factors... factors) {
  return polynomial(x, fused(spread(factor), sum, x), factors...);
}

// exp(x) for x in [-87, 88], to two roundings: 2^n * exp(r), r in [-ln 2 / 2, ln 2 / 2] by the polynomial of Cephes' expf.
inline Floats exponential(Floats x) {
  const Floats n = rounded(times(x, spread(1.44269504f)));
  const Floats r = fused(fused(x, n, spread(-0.693359375f)), n, spread(2.12194440e-4f));
  const Floats sum = polynomial(r, spread(1.9875691500e-4f), 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                                1.6666665459e-1f, 5.0000001201e-1f);
  return times(plus(fused(r, sum, times(r, r)), spread(1)), power_of_2(n));
}

// x / (1 + exp(-t)); below t = -87, where the quotient is less than a rounding of x by far, 0.
inline Floats gated(Floats x, Floats t) {
  const Floats near = lower(higher(t, spread(-87)), spread(87));
  const Floats value = quotient(x, plus(spread(1), exponential(times(near, spread(-1)))));
  return zero_below(value, t, -87);
}

// x times the normal distribution function, by 7.1.26 of Abramowitz and Stegun, whose error is 1.5e-7; from -6 down, where the
// result is less than a rounding of x by far, 0.
inline Floats normal_weighted(Floats x) {
  const Floats size = lower(higher(x, times(x, spread(-1))), spread(6));
  const Floats z = times(size, spread(0.70710678f));
  const Floats t = quotient(spread(1), fused(spread(1), z, spread(0.3275911f)));
  const Floats sum =
      polynomial(t, spread(1.061405429f), -1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f);
  const Floats tail = times(times(sum, t), times(spread(0.5f), exponential(times(times(z, z), spread(-1)))));
  return zero_below(times(x, chosen_by_sign(x, tail, fused(spread(1), tail, spread(-1)))), x, -6);
}

inline Floats activated(Floats x, int64_t activation) {
  switch (activation) {
    case kRelu: return positive(x);
    case kGelu: return normal_weighted(x);
    case kGeluTanh:
      return gated(x, times(x, fused(spread(1.5957691216f), times(x, x), spread(0.0713548163f))));
    case kSilu: return gated(x, x);
    default: return x;
  }
}

}  // namespace
