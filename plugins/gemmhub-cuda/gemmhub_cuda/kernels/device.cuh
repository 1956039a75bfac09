// What the device has that C++ has not, as far as all kernels need it. The tests' emulator replaces this file.
#pragma once
#include "ptx_blocks.cuh"

// Rounded to nearest even. Cards before capability 8.0 have no instruction for bfloat16.
DEVICE u16 to_bf16(float value) {
    const u32 bits = __float_as_uint(value);
    if (value != value) return 0x7fff;
    return static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

DEVICE u16 to_f16(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// Two values rounded to nearest even; `low` goes to the lower half, which is the lower address.
DEVICE u32 pack_bf16(float low, float high) {
#if __CUDA_ARCH__ >= 800
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    return to_bf16(low) | static_cast<u32>(to_bf16(high)) << 16;
#endif
}

DEVICE u32 pack_f16(float low, float high) { return to_f16(low) | static_cast<u32>(to_f16(high)) << 16; }

// The larger number; NaN where one is NaN.
DEVICE float max_or_nan(float x, float y) {
#if __CUDA_ARCH__ >= 800
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
    return larger;
#else
    return x != x ? x : y > x || y != y ? y : x;
#endif
}
