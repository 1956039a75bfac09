// The activations of the epilogue, on the vectors of the header that is included before, vector.h or x86_64/vector_512.h: each
// to within the bound of gemmhub.epilogues, which is eight roundings of the argument where f cancels. NaN stays NaN; the limits at the
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

// x / (1 + exp(-t)); below t = -126 ln 2, where the divisor is beyond 2^126, 0. A NaN of t comes through in this order.
inline Floats gated(Floats x, Floats t) {
  const Floats near = lower(spread(87.336548f), higher(spread(-87.336548f), t));
  const Floats value = quotient(x, plus(spread(1), exponential(times(near, spread(-1)))));
  return zero_below(value, t, -87.336548f);
}

// By the polynomial of Cephes' tanhf up to 0.625, and 1 - 2 / (exp(2 abs(x)) + 1) beyond, which is 1 from 10 on.
inline Floats hyperbolic_tangent(Floats x) {
  const Floats square = times(x, x);
  const Floats sum = polynomial(square, spread(-5.70498872745e-3f), 2.06390887954e-2f, -5.37397155531e-2f,
                                1.33314422036e-1f, -3.33332819422e-1f);
  const Floats small = times(x, fused(spread(1), square, sum));  // which keeps the sign of 0
  const Floats size = lower(spread(10), higher(x, times(x, spread(-1))));  // in this order a NaN comes through
  const Floats far = fused(spread(1), spread(-2), quotient(spread(1), plus(spread(1), exponential(plus(size, size)))));
  return chosen_by_sign(plus(size, spread(-0.625f)), small, chosen_by_sign(x, times(far, spread(-1)), far));
}

// x min(max(x + 3, 0), 6) / 6, which is x from 3 on: six times the float32 of 1 / 6 is 1.
inline Floats hard_swish(Floats x) {
  const Floats sixths = lower(higher(plus(x, spread(3)), spread(0)), spread(6));
  return zero_below(times(x, times(sixths, spread(0.16666667f))), x, -3);
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
    case kTanh: return hyperbolic_tangent(x);
    case kSigmoid: return gated(spread(1), x);
    case kReluSquared: return times(positive(x), positive(x));
    case kLeakyRelu: return chosen_by_sign(x, times(x, spread(0.01f)), x);
    case kHardswish: return hard_swish(x);
    default: return x;
  }
}

}  // namespace
