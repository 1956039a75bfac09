// Elements of C, bias and D: loads, stores and activations. Types are numbered as in config.cuh (0 bfloat16, 1 float16,
// 2 float32).
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

#include "activation_functions.cuh"
