// Clusters: their barriers, and the sum over the CTAs that share one tile's K (kClusterK). Without a cluster, or without
// kClusterK, the functions are empty or those of a single CTA. What CTAs multicast is in tma_load.cuh.
//
// CTA q gets slice q of the tile's columns from all CTAs that share K, its own too, and adds in the order of K. Nothing
// goes through global memory, and no CTA is the last one that adds everything. Slices are sent to where the ring was: such
// a cluster has one work tile, so no CTA needs its ring any more once all have arrived at the first of two barriers of the
// cluster. The second one, which the end of the kernel waits for, keeps a CTA alive until all have sent what they had; its
// own sum's barrier keeps it until that has come.
//
// sum: one arrival, of thread 0 from the start, and the bytes of all slices; ends the wait of all consumer threads.
//
// st.async and its barrier need no fence. Cluster barriers that release and acquire would: of the whole GPU, 0.3 us each.
#pragma once
#include "emulation.cuh"
#include "epilogue.cuh"

// An attribute can only be left out by the preprocessor.
#if GEMM_CLUSTER_M * GEMM_CLUSTER_N * GEMM_CLUSTER_K > 1
#define CLUSTER_SHAPE __cluster_dims__(kClusterSize, 1, 1)
#else
#define CLUSTER_SHAPE
#endif

// A slice: [part of the tile's rows][fragment][register / 4][thread] x 16 bytes.
constexpr u32 SLICE_LINE_BYTES = 128 * 16;
constexpr u32 SLICE_PART_BYTES = kNumFragments * SUM_N / 8 * SLICE_LINE_BYTES;
constexpr u32 SLICE_BYTES = kWarpgroupsPerTile * SLICE_PART_BYTES;
constexpr u32 SENT_BYTES = SLICE_BYTES + (kSplitPlanesB ? SMEM_MARKS_BYTES : 0);  // from one CTA to another, with marks
static_assert(kClusterK == 1 || SMEM_STORE_OFFSET >= kClusterK * SLICE_BYTES, "slices come where the ring was");

// By the thread that initialises barriers.
DEVICE void init_cluster_sum(u32 smem, u32 cta_rank) {
    if constexpr (kClusterK > 1) {
        barrier_init(smem + SMEM_SUM_OFFSET, 1);
        if (rank_k(cta_rank) < kNumSlices) barrier_arrive_expect(smem + SMEM_SUM_OFFSET, kClusterK * SENT_BYTES);
    }
}

// By all threads, before barriers that are new are used: also those of other CTAs.
DEVICE void sync_new_barriers() {
    if constexpr (kNumMulticast > 1)
        cluster_sync();
    else
        block_sync();
}

// By all threads but those of consumers, which do the same in reduce_cluster().
DEVICE void join_cluster_barriers() {
    if constexpr (kClusterK > 1) {
        cluster_arrive();
        cluster_wait();
        cluster_arrive();
    }
}

// By all threads at the end of the kernel: other CTAs may still signal this one's barriers, or send it slices.
DEVICE void leave_cluster() {
    if constexpr (kClusterK > 1)
        cluster_wait();
    else if constexpr (kNumMulticast > 1)
        cluster_sync();
}

// The sum over the CTAs that share K: true where this CTA has a slice to store, then in `slice`.
DEVICE bool reduce_cluster(Results& slice, const Accumulators& acc, TileContext ctx, const Emulation& emulation) {
    if constexpr (kClusterK == 1) return true;
    constexpr u32 QUADS = SUM_N / 8;
    const u32 part = rank_k(ctx.cta_rank);
    const u32 mine = ctx.smem + ctx.tile_part() * SLICE_PART_BYTES + threadIdx.x % 128 * 16;
    // warp_id() anew, not ctx.warp: that would occupy a register during the main loop.
    const u32 word = kSplitPlanesB ? mark_address(ctx.smem, part, 4 * ctx.tile_part() + warp_id() % 4) : 0;
    cluster_arrive();
    cluster_wait();
#pragma unroll
    for (u32 q = 0; q < kNumSlices; ++q) {
        const u32 to = q * kNumMulticast + ctx.cta_rank % kNumMulticast;
        const u32 there = cluster_address(mine + part * SLICE_BYTES, to);
        const u32 sum = cluster_address(ctx.smem + SMEM_SUM_OFFSET, to);
#pragma unroll
        for (u32 i = 0; i < kNumFragments; ++i)
#pragma unroll
            for (u32 j = 0; j < QUADS; ++j) {
                store_async(there + (i * QUADS + j) * SLICE_LINE_BYTES, quad_of(&acc[i][4 * (q * QUADS + j)]), sum);
            }
        if (kSplitPlanesB && lane_id() == 0)
            store_async(cluster_address(word, to), {__uint_as_float(emulation.marks), 0.0f, 0.0f, 0.0f}, sum);
    }
    cluster_arrive();
    if (part >= kNumSlices) return false;
    barrier_wait(ctx.smem + SMEM_SUM_OFFSET, 0);
#pragma unroll
    for (u32 q = 0; q < kClusterK; ++q)
#pragma unroll
        for (u32 i = 0; i < kNumFragments; ++i)
#pragma unroll
            for (u32 j = 0; j < QUADS; ++j) {
                const u32 address = mine + q * SLICE_BYTES + (i * QUADS + j) * SLICE_LINE_BYTES;
                add_quad(&slice[i][4 * j], load_four(address), q == 0);
            }
    return true;
}

// What this CTA stores: its slice, or without kClusterK its accumulators, which have the same type then.
template <class Sums>
DEVICE Results& cluster_results(Sums& acc, Results& slice) {
    if constexpr (kClusterK > 1)
        return slice;
    else
        return acc;
}
