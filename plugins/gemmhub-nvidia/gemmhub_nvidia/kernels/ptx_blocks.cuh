// Threads and their block, memory between blocks, groups of asynchronous copies, for every card.
#pragma once
#include "ptx_arithmetic.cuh"

// --- threads --------------------------------------------------------------------------------------------------

DEVICE u32 lane_id() { return threadIdx.x % 32; }

// The same in all 32 lanes; the shuffle lets the compiler see that, and keep what depends on it in uniform registers.
DEVICE u32 warp_id() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

DEVICE void block_sync() { __syncthreads(); }

// --- global memory shared between blocks ----------------------------------------------------------------------

struct alignas(16) Float4 {
    float x, y, z, w;
};

DEVICE void store_partial(Float4* to, Float4 value) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(value.x), "f"(value.y), "f"(value.z),
                 "f"(value.w)
                 : "memory");
}

// From L2: another block wrote it, and L1 is not coherent.
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

// --- groups of asynchronous copies from global to shared memory (cp.async; from compute capability 8.0 on) ----

// Closes the thread's open group, which may be empty.
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all but the newest `open` groups of this thread have landed. Other threads see them after the next barrier.
template <int open>
DEVICE void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(open) : "memory");
}
