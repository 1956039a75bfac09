// Elements of C, bias and D: loads, stores and activations. Types are numbered as in config.cuh (0 bfloat16, 1 float16,
// 2 float32, and of D alone 4 e4m3 and 5 e5m2).
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

// Two 8-bit floats, rounded to nearest even within their range; NaN stays.
template <int type>
DEVICE u16 pack_float8(float low, float high) {
    return type == 4 ? pack_e4m3(low, high) : pack_e5m2(low, high);
}

template <int type>
DEVICE void store_element(void* base, long long index, float value) {
    if constexpr (type == 2)
        static_cast<float*>(base)[index] = value;
    else if constexpr (type >= 4)
        static_cast<unsigned char*>(base)[index] = static_cast<unsigned char>(pack_float8<type>(value, 0.0f));
    else
        static_cast<u16*>(base)[index] = static_cast<u16>(type == 0 ? pack_bf16(value, 0.0f) : pack_f16(value, 0.0f));
}

#include "activation_functions.cuh"
