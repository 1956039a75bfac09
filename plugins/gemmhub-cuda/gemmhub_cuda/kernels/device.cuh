// What the device has that C++ has not, as far as all kernels need it. No CUDA header is included: NVRTC has none.
// The tests' emulator replaces this file.
#pragma once

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

#define GLOBAL_KERNEL extern "C" __global__
#define DEVICE __device__ __forceinline__

struct alignas(16) Float4 {
    float x, y, z, w;
};

// --- arithmetic -----------------------------------------------------------------------------------------------

DEVICE float infinity() { return __int_as_float(0x7f800000); }

DEVICE float from_bf16(u16 bits) { return __uint_as_float(static_cast<u32>(bits) << 16); }

DEVICE float from_f16(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

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

// 2^x, to 2 units in the last place.
DEVICE float exp2_fast(float x) {
    float value;
    asm("ex2.approx.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}

// x / y, to 2 units in the last place for |y| up to 2^126; beyond that 0 (of a finite x).
DEVICE float divide_fast(float x, float y) {
    float value;
    asm("div.approx.f32 %0, %1, %2;" : "=f"(value) : "f"(x), "f"(y));
    return value;
}

// The same value, as one that the compiler knows nothing of: what follows from it is not computed (and kept in registers)
// before it is needed.
DEVICE int opaque(int value) {
    asm volatile("" : "+r"(value));
    return value;
}

// --- the block, and memory shared between blocks ---------------------------------------------------------------

DEVICE void block_sync() { __syncthreads(); }

DEVICE void store_partial(Float4* to, Float4 value) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(value.x), "f"(value.y), "f"(value.z),
                 "f"(value.w)
                 : "memory");
}

// From L2: another block wrote it, and L1 knows nothing of that.
DEVICE Float4 load_partial(const Float4* from) {
    Float4 value;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}

// Orders what this thread has seen and written before what it does later, for the whole device.
DEVICE void device_fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Adds 1; the old value.
DEVICE u32 count_up(u32* counter) {
    u32 old;
    asm volatile("atom.global.acq_rel.gpu.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(counter) : "memory");
    return old;
}
