// Adding up what the blocks of a cluster have accumulated, each over its part of one tile's k (CLUSTER_K).
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
constexpr u32 LINE_BYTES = 128 * 16;
constexpr u32 SHARE_BYTES = M_BLOCKS * OUT_N / 8 * LINE_BYTES;
constexpr u32 SLICE_BYTES = SHARERS * SHARE_BYTES;
constexpr u32 PART_BYTES = SLICE_BYTES + (B_SPLIT ? MARK_BYTES : 0);  // that a block sends to another
static_assert(CLUSTER_K == 1 || STAGING_AT >= CLUSTER_K * SLICE_BYTES, "slices come where the ring was");

// By the thread that initialises barriers.
DEVICE void expect_slices(u32 base, u32 part) {
    barrier_init(base + SUM_AT, 1);
    if (part < SLICES) barrier_arrive_expect(base + SUM_AT, CLUSTER_K * PART_BYTES);
}

// By all threads but those of consumers, who do the same in add_cluster().
DEVICE void let_add_cluster() {
    cluster_arrive();
    cluster_wait();
    cluster_arrive();
}

// True where this block, number `part` of those that share k, has a slice to store, its sums in `sums`. `marks`: a warp's
// word, with B_SPLIT.
DEVICE bool add_cluster(Results& sums, const Accumulators& acc, u32 base, u32 rank, u32 part, u32 share, u32 marks) {
    constexpr u32 KEPT = OUT_N / 8;
    const u32 mine = base + share * SHARE_BYTES + threadIdx.x % 128 * 16;
    const u32 word = B_SPLIT ? mark_at(base, part, 4 * share + warp_id() % 4) : 0;
    cluster_arrive();
    cluster_wait();
#pragma unroll
    for (u32 q = 0; q < SLICES; ++q) {
        const u32 to = q * SHARING + rank % SHARING;
        const u32 there = cluster_address(mine + part * SLICE_BYTES, to), sum = cluster_address(base + SUM_AT, to);
#pragma unroll
        for (u32 block = 0; block < M_BLOCKS; ++block)
#pragma unroll
            for (u32 j = 0; j < KEPT; ++j) {
                const float* v = &acc[block][4 * (q * KEPT + j)];
                store_async(there + (block * KEPT + j) * LINE_BYTES, {v[0], v[1], v[2], v[3]}, sum);
            }
        if (B_SPLIT && lane_id() == 0)
            store_async(cluster_address(word, to), {__uint_as_float(marks), 0.0f, 0.0f, 0.0f}, sum);
    }
    cluster_arrive();
    if (part >= SLICES) return false;
    barrier_wait(base + SUM_AT, 0);
#pragma unroll
    for (u32 q = 0; q < CLUSTER_K; ++q)
#pragma unroll
        for (u32 block = 0; block < M_BLOCKS; ++block)
#pragma unroll
            for (u32 j = 0; j < KEPT; ++j) {
                const u32 place = mine + q * SLICE_BYTES + (block * KEPT + j) * LINE_BYTES;
                add_four(&sums[block][4 * j], load_four(place), q == 0);
            }
    return true;
}
