// What the formulas of activations use, in terms of ptx_arithmetic.cuh, and the formulas.
#pragma once

// x / (1 + exp(-t)). Where x is -inf the limit, 0; NaN stays NaN.
DEVICE float gated(float x, float t) {
    const float value = x * reciprocal_fast(1.0f + exp2_fast(-1.4426950408889634f * t));
    return x == -infinity() ? 0.0f : value;
}

// x times the normal distribution function: to 2^-23 of x, and to 2^-9 of the value where that is tiny. Where x is -inf
// the limit, 0; NaN stays NaN.
DEVICE float normal_weighted(float x) {
    // The probability beyond |x| is exp(-x^2 / 2) times a polynomial of t, fitted to 5e-8 of 1 and to 1e-3 of itself.
    const float t = reciprocal_fast(1.0f + 0.4f * (x < 0.0f ? -x : x));
    float tail = 0.0532919168f * t - 0.242479593f;
    tail = tail * t + 0.320618987f;
    tail = tail * t + 0.0279459488f;
    tail = tail * t + 0.183064565f;
    tail = tail * t + 0.157558143f;
    tail *= t * exp2_fast(-0.72134752f * x * x);
    const float value = x * (x < 0.0f ? tail : 1.0f - tail);
    return x == -infinity() ? 0.0f : value;
}

// activated<number>(x) for the numbers from 0, none; generated (gemmhub_nvidia/sources.py).
#include "activations.cuh"
