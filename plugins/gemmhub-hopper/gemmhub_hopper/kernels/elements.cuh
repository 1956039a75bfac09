// Elements of C, bias and D: loads, stores and activations. Types are numbered as in config.cuh (0 bfloat16, 1 float16,
// 2 float32), and so are activations.
#pragma once
#include "ptx.cuh"

template <int type>
DEVICE float load_element(const void* base, long long index) {
    if constexpr (type == 2) {
        return static_cast<const float*>(base)[index];
    } else {
        const u16 bits = static_cast<const u16*>(base)[index];
        return type == 0 ? from_bf16(bits) : from_f16(bits);
    }
}

template <int type>
DEVICE void store_element(void* base, long long index, float value) {
    if constexpr (type == 2)
        static_cast<float*>(base)[index] = value;
    else
        static_cast<u16*>(base)[index] = static_cast<u16>(type == 0 ? pack_bf16(value, 0.0f) : pack_f16(value, 0.0f));
}

// x / (1 + exp(-t)); for x = -inf its limit, 0. NaN stays NaN.
DEVICE float gated(float x, float t) {
    const float value = divide_fast(x, 1.0f + exp2_fast(-1.4426950408889634f * t));
    return x == -infinity() ? 0.0f : value;
}

template <int activation>
DEVICE float activated(float x) {
    static_assert(activation >= 0 && activation <= 3, "an activation without a formula");
    if constexpr (activation == 1) return x < 0.0f ? 0.0f : x;
    // 0.5 x (1 + tanh(u)) is x / (1 + exp(-2 u)), without the cancellation; u = sqrt(2 / pi) (x + 0.044715 x^3).
    if constexpr (activation == 2) return gated(x, x * (1.5957691216057308f + 0.07135481627159286f * x * x));
    if constexpr (activation == 3) return gated(x, x);
    return x;
}
