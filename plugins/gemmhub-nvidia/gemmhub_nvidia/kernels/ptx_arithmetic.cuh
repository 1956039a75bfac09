// Qualifiers, types, conversions and fast functions, for every card. No CUDA header is included: NVRTC's wheel has none.
//
// A plugin's ptx.cuh includes this file and those of the other instructions that its cards have. An emulator on the host
// replaces that ptx.cuh, so it needs none of them.
#pragma once

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

#define GLOBAL_KERNEL extern "C" __global__
#define DEVICE __device__ __forceinline__

DEVICE float infinity() { return __int_as_float(0x7f800000); }

DEVICE float from_bf16(u16 bits) { return __uint_as_float(static_cast<u32>(bits) << 16); }

DEVICE float from_f16(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// 2^x, to 2 units in the last place; a subnormal result is 0.
DEVICE float exp2_fast(float x) {
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}

// 1 / x for x from 1 on, to 1 unit in the last place; beyond 2^126 it is 0. Without the instructions by which division takes
// divisors of any size.
DEVICE float reciprocal_fast(float x) {
    float value;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}

// The same value, as one that the compiler knows nothing of: what follows from it is not computed (and kept in registers)
// before it is needed.
DEVICE int opaque(int value) {
    asm volatile("" : "+r"(value));
    return value;
}
