// Adding up what the blocks of a cluster have accumulated, each over its part of one tile's k (kClusterK).
//
// Block q gets slice q of the columns from all of them, its own too, and adds in the order of k. Nothing goes through
// memory, and nobody is the last one to add everything. Slices are sent where the ring was: such a cluster has one piece,
// so nobody needs the ring once all its blocks have come by the first of two syncs of the cluster. The second one, which
// ends when the kernel does, keeps a block there until all have sent what they had; its own sum's barrier, until that has
// come.
//
// sum: one arrival, of thread 0 from the start, and the bytes of all slices; ends the wait of all consumer threads.
//
// st.async and its barrier need no fence. Syncs that release and acquire would: of the whole GPU, 0.3 us each.
#pragma once
#include "b_planes.cuh"
#include "epilogue.cuh"

// Of a slice: [share][block of 64 rows][register / 4][thread] x 16 bytes.
constexpr u32 SLICE_LINE_BYTES = 128 * 16;
constexpr u32 SLICE_WARPGROUP_BYTES = kNumFragments * OUT_N / 8 * SLICE_LINE_BYTES;
constexpr u32 SLICE_BYTES = kWarpgroupsPerTile * SLICE_WARPGROUP_BYTES;
constexpr u32 SLICE_AND_MARKS_BYTES =
    SLICE_BYTES + (kSplitPlanesB ? SMEM_MARKS_BYTES : 0);  // that a block sends to another
static_assert(kClusterK == 1 || SMEM_STORE_OFFSET >= kClusterK * SLICE_BYTES, "slices arrived where the ring was");

// By the thread that initialises barriers.
DEVICE void init_cluster_sum(u32 base, u32 part) {
    barrier_init(base + SMEM_SUM_OFFSET, 1);
    if (part < kNumSlices) barrier_arrive_expect(base + SMEM_SUM_OFFSET, kClusterK * SLICE_AND_MARKS_BYTES);
}

// By all threads but those of consumers, who do the same in reduce_cluster().
DEVICE void join_cluster_barriers() {
    cluster_arrive();
    cluster_wait();
    cluster_arrive();
}

// True where this block, number `part` of those that share k, has a slice to store, its sums in `sums`. `marks`: a warp's
// word, with kSplitPlanesB.
DEVICE bool reduce_cluster(Results& sums, const Accumulators& acc, u32 base, u32 rank, u32 part, u32 share, u32 marks) {
    constexpr u32 KEPT = OUT_N / 8;
    const u32 mine = base + share * SLICE_WARPGROUP_BYTES + threadIdx.x % 128 * 16;
    const u32 word = kSplitPlanesB ? mark_at(base, part, 4 * share + warp_id() % 4) : 0;
    cluster_arrive();
    cluster_wait();
#pragma unroll
    for (u32 q = 0; q < kNumSlices; ++q) {
        const u32 to = q * kNumMulticast + rank % kNumMulticast;
        const u32 there = cluster_address(mine + part * SLICE_BYTES, to),
                  sum = cluster_address(base + SMEM_SUM_OFFSET, to);
#pragma unroll
        for (u32 block = 0; block < kNumFragments; ++block)
#pragma unroll
            for (u32 j = 0; j < KEPT; ++j) {
                const float* v = &acc[block][4 * (q * KEPT + j)];
                store_async(there + (block * KEPT + j) * SLICE_LINE_BYTES, {v[0], v[1], v[2], v[3]}, sum);
            }
        if (kSplitPlanesB && lane_id() == 0)
            store_async(cluster_address(word, to), {__uint_as_float(marks), 0.0f, 0.0f, 0.0f}, sum);
    }
    cluster_arrive();
    if (part >= kNumSlices) return false;
    barrier_wait(base + SMEM_SUM_OFFSET, 0);
#pragma unroll
    for (u32 q = 0; q < kClusterK; ++q)
#pragma unroll
        for (u32 block = 0; block < kNumFragments; ++block)
#pragma unroll
            for (u32 j = 0; j < KEPT; ++j) {
                const u32 place = mine + q * SLICE_BYTES + (block * KEPT + j) * SLICE_LINE_BYTES;
                add_quad(&sums[block][4 * j], load_four(place), q == 0);
            }
    return true;
}
