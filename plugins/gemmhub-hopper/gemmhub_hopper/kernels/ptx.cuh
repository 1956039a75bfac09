// One wrapper per PTX instruction that the kernels use. No CUDA header is included: NVRTC's wheel has none.
//
// "shared address" is a 32-bit address in the shared window of this CTA (thread block); the same number names the same
// place in every CTA of a cluster. Barriers are 8-byte mbarriers, named by their shared address.
#pragma once
#include "types.cuh"

#define GLOBAL_KERNEL extern "C" __global__
#define DEVICE __device__ __forceinline__
#define SHARED_MEMORY __shared__

// What cuTensorMapEncodeTiled writes.
struct alignas(64) TensorMap {
    unsigned char opaque[128];
};

// --- thread and CTA indices -----------------------------------------------------------------------------------------------

DEVICE u32 lane_id() { return threadIdx.x % 32; }

// The same in all 32 lanes; the shuffle lets the compiler see that, and keep what depends on it in uniform registers.
DEVICE u32 warp_id() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

// True for one lane of a warp, always the same one; all lanes must call it. The compiler does not know that a lane found by
// its number is alone: it puts instructions that take uniform registers, as TMA's do, into loops, and reloads those registers
// each time.
DEVICE bool elect_one() {
    u32 chosen;
    asm volatile(
        "{\n"
        ".reg .pred chosen;\n"
        "elect.sync _|chosen, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, chosen;\n"
        "}"
        : "=r"(chosen));
    return chosen != 0;
}

// Rank of this CTA in its cluster.
DEVICE u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

DEVICE u32 dynamic_shared() {
    extern __shared__ unsigned char memory[];
    return static_cast<u32>(__cvta_generic_to_shared(memory));
}

// --- programmatic dependent launch (PDL) -----------------------------------------------------------------

// Waits until the kernel before this one in the stream has ended and its writes are visible: this one may have been launched
// before that.
DEVICE void wait_on_dependent_grids() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Lets the next kernel begin as soon as every CTA of this one has called this or has ended: it waits itself for results.
DEVICE void launch_dependent_grids() { asm volatile("griddepcontrol.launch_dependents;"); }

// Prefetches memory to the L2 cache. L2 sees later writes, so this may be done before wait_on_dependent_grids().
DEVICE void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// --- barriers -------------------------------------------------------------------------------------------------

DEVICE void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the other CTAs of the cluster and to TMA; a sync of them must follow.
DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// One arrival, and `bytes` more to be written by TMA before the phase ends.
DEVICE void barrier_arrive_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

DEVICE void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival at the barrier of the same name in CTA `rank` of the cluster (which may be this one). It orders nothing
// for the whole cluster, and need not: no value is handed over. What the arriving warp has done is read a stage that TMA
// then writes again, and a read that is complete sees no later write. Reads by wgmma are complete when wgmma_wait returns.
// Reads by ld.shared (A through registers, B split here) are complete when an instruction has taken their values from the
// registers of all lanes: as operands of a wgmma, or for stores of planes. Those instructions come before the arrival,
// and neither compiler changes that order, as all of them are volatile. With .release.cluster, and .acquire.cluster at the
// wait, each stage costs fences of the whole GPU and the L1 cache: on an H200 a third of the speed.
DEVICE void barrier_arrive_cluster(u32 barrier, u32 rank) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
        "}" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

// Returns once the phase of this parity has ended. On a fresh barrier the phase "before the first", of parity 1, has.
DEVICE void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra finished;\n"
        "bra again;\n"
        "finished:\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

DEVICE void block_sync() { __syncthreads(); }

// The two low bits that any thread of the block has set.
DEVICE u32 block_or(u32 bits) { return (__syncthreads_or(bits & 1) ? 1 : 0) | (__syncthreads_or(bits & 2) ? 2 : 0); }

// The bits that any thread of the warp has set.
DEVICE u32 warp_or(u32 bits) { return __reduce_or_sync(0xffffffffu, bits); }

// The value of the lane whose number differs in the bits of `lanes`.
DEVICE float shuffle_xor(float value, u32 lanes) { return __shfl_xor_sync(0xffffffffu, value, lanes); }

// The two halves of a cluster barrier that orders no memory accesses: it only tells that all CTAs have arrived.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }

// A barrier of all threads of all CTAs of the cluster.
DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// A named barrier of `threads` threads; `name` 1..15.
DEVICE void named_sync(u32 name, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory"); }

// --- TMA ------------------------------------------------------------------------------------------------------

DEVICE void prefetch_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// Loads the box at (x, y, z), x innermost, to shared memory; what is outside of the tensor becomes 0.
DEVICE void tma_load(u32 to, const TensorMap* map, int x, int y, int z, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
            "r"(to),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
        : "memory");
}

// As tma_load, to the same place in every CTA of the bit mask `blocks` (a bit for each rank), each with its own barrier.
DEVICE void tma_load_multicast(u32 to, const TensorMap* map, int x, int y, int z, u32 barrier, u16 blocks) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(blocks)
        : "memory");
}

// Stores a box; what is outside of the tensor is left out. Belongs to the thread's open group. What is `streamed` is the
// first that L2 gives up.
DEVICE void tma_store(const TensorMap* map, u32 from, int x, int y, int z, bool streamed) {
    const u64 policy = streamed ? 0x12f0000000000000 : 0x1000000000000000;  // evict_first, evict_normal
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%1, %2, %3}], [%4], %5;" ::"l"(map),
        "r"(x), "r"(y), "r"(z), "r"(from), "l"(policy)
        : "memory");
}

DEVICE void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all groups of this thread have read their shared memory.
DEVICE void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Waits until all groups of this thread are written.
DEVICE void tma_store_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Orders this thread's ordinary accesses of shared memory before those by TMA and wgmma that follow, its own and, after a
// sync, other threads'. Every thread that writes what TMA or wgmma will read executes it before that sync.
DEVICE void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

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

// The same value, as one that the compiler knows nothing of: what is computed from it is not kept for the next use.
DEVICE int opaque(int value) {
    asm volatile("" : "+r"(value));
    return value;
}

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

// --- shared memory --------------------------------------------------------------------------------------------

// Four 8x8 matrices of 16-bit elements. Lane 8q + r names the 16 bytes of row r of matrix q; in its q-th word it
// holds elements (lane / 4, 2 (lane % 4)) and the next one of matrix q.
DEVICE void store_matrices(u32 row, u32 w0, u32 w1, u32 w2, u32 w3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(w0), "r"(w1),
                 "r"(w2), "r"(w3)
                 : "memory");
}

// The same with each matrix transposed as it is stored: lane 8q + r names the place of *column* r of matrix q.
DEVICE void store_matrices_transposed(u32 row, u32 w0, u32 w1, u32 w2, u32 w3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(w0), "r"(w1),
                 "r"(w2), "r"(w3)
                 : "memory");
}

// Stores to a staging buffer: 4 bytes, and 8 at a multiple of 8.
DEVICE void store_staged(u32 to, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}

DEVICE void store_staged(u32 to, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
}

// Before threads load what others of their warp, or of a named barrier, have written to a staging buffer.
DEVICE void sync_warp_stores() { __syncwarp(); }
DEVICE void sync_stores(u32 name, u32 threads) { named_sync(name, threads); }

DEVICE void store_shared(u32 to, u32 value) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

DEVICE u32 load_shared(u32 from) {
    u32 value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
    return value;
}

DEVICE u16 load_shared_half(u32 from) {
    u16 value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(from) : "memory");
    return value;
}

// From a multiple of 16.
DEVICE void load_words(u32 from, u32& w0, u32& w1, u32& w2, u32& w3) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w0), "=r"(w1), "=r"(w2), "=r"(w3) : "r"(from) : "memory");
}

// The word that begins `bits` (below 32) above the low end of two.
DEVICE u32 shift_pair(u32 low, u32 high, u32 bits) {
    u32 word;
    asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(low), "r"(high), "r"(bits));
    return word;
}

DEVICE void store_float(u32 to, float value) { store_shared(to, __float_as_uint(value)); }

DEVICE float load_float(u32 from) { return __uint_as_float(load_shared(from)); }

// To the same place in the CTA of that rank in the cluster.
DEVICE void store_float(u32 to, u32 rank, float value) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "st.shared::cluster.f32 [there], %2;\n"
        "}" ::"r"(to),
        "r"(rank), "f"(value)
        : "memory");
}

// 8 bytes, at a multiple of 8.
DEVICE void load_shared_pair(u32 from, float (&to)[2]) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(to[0]), "=f"(to[1]) : "r"(from) : "memory");
}

// 16 bytes, at a multiple of 16.
struct alignas(16) Float4 {
    float x, y, z, w;
};

DEVICE Float4 load_four(u32 from) {
    Float4 value;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(from)
                 : "memory");
    return value;
}

// The address of `name` in the CTA of that rank, as store_async() takes it.
DEVICE u32 cluster_address(u32 name, u32 rank) {
    u32 address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(name), "r"(rank));
    return address;
}

// 16 bytes, to a CTA that counts them at a barrier of its own.
DEVICE void store_async(u32 to, Float4 value, u32 barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
        "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
        : "memory");
}

// --- global memory shared between CTAs ----------------------------------------------------------------------

DEVICE void store_partial(Float4* to, Float4 value) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(value.x), "f"(value.y), "f"(value.z),
                 "f"(value.w)
                 : "memory");
}

// From L2: another CTA wrote it, and L1 is not coherent.
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

// The old value.
DEVICE u64 add_to_counter(u64* counter, u64 what) {
    u64 old;
    asm volatile("atom.global.acq_rel.gpu.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(counter), "l"(what) : "memory");
    return old;
}

DEVICE u64 load_counter(const u64* counter) {
    u64 value;
    asm volatile("ld.global.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(counter) : "memory");
    return value;
}

// 2 bytes; 4, 8 or 16 bytes, at a multiple of as many; zeros where `there` is false. In the order of the program, so that all
// loads that can be under way at once are.
DEVICE void load_half_if(const void* from, bool there, u32 (&to)[1]) {
    u16 low;
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "setp.ne.u32 there, %2, 0;\n"
        "mov.u16 %0, 0;\n"
        "@there ld.global.u16 %0, [%1];\n"
        "}"
        : "=h"(low)
        : "l"(from), "r"(static_cast<u32>(there))
        : "memory");
    to[0] = low;
}
DEVICE void load_if(const void* from, bool there, u32 (&to)[1]) {
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "setp.ne.u32 there, %2, 0;\n"
        "mov.u32 %0, 0;\n"
        "@there ld.global.u32 %0, [%1];\n"
        "}"
        : "=r"(to[0])
        : "l"(from), "r"(static_cast<u32>(there))
        : "memory");
}
DEVICE void load_if(const void* from, bool there, u32 (&to)[2]) {
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "setp.ne.u32 there, %3, 0;\n"
        "mov.u32 %0, 0;\n"
        "mov.u32 %1, 0;\n"
        "@there ld.global.v2.u32 {%0, %1}, [%2];\n"
        "}"
        : "=r"(to[0]), "=r"(to[1])
        : "l"(from), "r"(static_cast<u32>(there))
        : "memory");
}
DEVICE void load_if(const void* from, bool there, u32 (&to)[4]) {
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "setp.ne.u32 there, %5, 0;\n"
        "mov.u32 %0, 0;\n"
        "mov.u32 %1, 0;\n"
        "mov.u32 %2, 0;\n"
        "mov.u32 %3, 0;\n"
        "@there ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
        "}"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "l"(from), "r"(static_cast<u32>(there))
        : "memory");
}

// 16 bytes, at multiples of as many, to shared memory; zeros where `there` is false. Belongs to the thread's open group.
DEVICE void copy_async(u32 to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the newest `open` groups of this thread have arrived.
template <int open>
DEVICE void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(open) : "memory");
}

// Stores to D: 16 bytes at a multiple of 16, 4 and 2.
DEVICE void store_words(void* to, u32 w0, u32 w1, u32 w2, u32 w3) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w0), "r"(w1), "r"(w2), "r"(w3) : "memory");
}
DEVICE void store_word(void* to, u32 value) { *static_cast<u32*>(to) = value; }
DEVICE void store_half(void* to, u16 value) { *static_cast<u16*>(to) = value; }

// A word that other CTAs write.
DEVICE u32 load_word(const u32* from) {
    u32 value;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

// Sets bits of a word that many CTAs set and few find unset.
DEVICE void mark(u32* word, u32 bits) {
    if ((load_word(word) & bits) != bits) atomicOr(word, bits);
}

// Raises a word that many CTAs raise.
DEVICE void raise_to(u32* word, u32 value) {
    if (load_word(word) < value) atomicMax(word, value);
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

DEVICE float from_f16(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

DEVICE float infinity() { return __int_as_float(0x7f800000); }

DEVICE float from_bf16(u16 bits) { return __uint_as_float(static_cast<u32>(bits) << 16); }

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
