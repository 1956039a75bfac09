// Clusters, programmatic dependent launch, mbarriers and TMA: from compute capability 9.0 on.
//
// "shared address" is a 32-bit address in the shared window of this CTA (thread block); the same number names the same
// offset in every CTA of a cluster. Barriers are 8-byte mbarriers, named by their shared address.
#pragma once
#include "ptx_arithmetic.cuh"

// What cuTensorMapEncodeTiled writes.
struct alignas(64) TensorMap {
    unsigned char opaque[128];
};

// --- threads and clusters -------------------------------------------------------------------------------------

// True for one lane of a warp, always the same one; all lanes must call it. The compiler does not know that a lane chosen by
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

// The two halves of a cluster barrier that orders no memory accesses: it only signals that all CTAs have arrived.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }

// A barrier of all threads of all CTAs of the cluster.
DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
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

// As tma_load, to the same offset in every CTA of the bit mask `blocks` (a bit for each rank), each with its own barrier.
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
