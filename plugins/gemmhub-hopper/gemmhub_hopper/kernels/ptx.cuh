// One wrapper per PTX instruction that the kernels use, those of ptx_memory.cuh included. No CUDA header is included:
// NVRTC's wheel has none.
//
// "shared address" is a 32-bit address in the shared window of this CTA (thread block); the same number names the same
// offset in every CTA of a cluster. Barriers are 8-byte mbarriers, named by their shared address.
#pragma once
#include "ptx_blocks.cuh"
#include "ptx_tma.cuh"
#include "types.cuh"

#define SHARED_MEMORY __shared__

// --- thread and CTA indices -----------------------------------------------------------------------------------------------

DEVICE u32 dynamic_shared() {
    extern __shared__ unsigned char memory[];
    return static_cast<u32>(__cvta_generic_to_shared(memory));
}

// The two low bits that any thread of the block has set.
DEVICE u32 block_or(u32 bits) { return (__syncthreads_or(bits & 1) ? 1 : 0) | (__syncthreads_or(bits & 2) ? 2 : 0); }

// The bits that any thread of the warp has set.
DEVICE u32 warp_or(u32 bits) { return __reduce_or_sync(0xffffffffu, bits); }

// The smallest number of any thread of the warp.
DEVICE u32 warp_min(u32 number) { return __reduce_min_sync(0xffffffffu, number); }

// The largest number of any thread of the warp.
DEVICE u32 warp_max(u32 number) { return __reduce_max_sync(0xffffffffu, number); }

// The value of the lane whose number differs in the bits of `lanes`.
DEVICE float shuffle_xor(float value, u32 lanes) { return __shfl_xor_sync(0xffffffffu, value, lanes); }

// A named barrier of `threads` threads; `name` 1..15.
DEVICE void named_sync(u32 name, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory"); }

// --- wgmma (the multiplication itself is in the generated wgmma.cuh) ------------------------------------------

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all but the newest `open` groups of this warpgroup are done.
template <int open>
DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(open) : "memory");
}

// Keeps the compiler from moving reads of an accumulator across the wait: it does not know that wgmma writes late.
DEVICE void pin(float& accumulator) { asm volatile("" : "+f"(accumulator)::"memory"); }
DEVICE void pin(int& accumulator) { asm volatile("" : "+r"(accumulator)::"memory"); }

// As opaque() of an int.
DEVICE long long opaque(long long value) {
    asm volatile("" : "+l"(value));
    return value;
}

template <int count>
DEVICE void warpgroup_reg_dealloc() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

template <int count>
DEVICE void warpgroup_reg_alloc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// --- arithmetic -----------------------------------------------------------------------------------------------

// Two values rounded to nearest even; `low` goes to the lower half, which is the lower address.
DEVICE u32 pack_bf16(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

DEVICE u32 pack_f16(float low, float high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Two e4m3 as float16, which is exact.
DEVICE u32 unpack_e4m3(u16 both) {
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(both));
    return halves;
}

// The sum of the products of four int8 each, modulo 2^32.
DEVICE int dot_int8(u32 x, u32 y, int sum) {
    int value;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(value) : "r"(x), "r"(y), "r"(sum));
    return value;
}

// Two values rounded to 8-bit floats; larger ones become the largest one, and NaN stays.
DEVICE u16 pack_e4m3(float low, float high) {
    u16 both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
    return both;
}

DEVICE u16 pack_e5m2(float low, float high) {
    u16 both;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
    return both;
}

// The larger one; NaN where one of both is.
DEVICE float max_or_nan(float x, float y) {
    float value;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(x), "f"(y));
    return value;
}

#include "ptx_memory.cuh"
