// d = activation(alpha * a b + beta * c + bias) on Hopper: a m x k, b k x n, accumulated in float32.
//
// Persistent thread blocks; each consists of one producer warpgroup and kNumConsumers consumer warpgroups:
//
//     threads              role        does
//     one of 0..31         producer    TMA loads of a's and b's tiles into the ring of stages
//     others up to 127     -           idle; they are there to give their registers to the consumers
//     128 (1 + w)..        consumer w  wgmma on full stages, and the epilogue: of rows [w, w + 1) BLOCK_M / kNumConsumers of
//                                      every tile, or with kPingpong of all rows of every other tile (pingpong.cuh)
//
// Synchronisation (the ring is described in pipeline.cuh):
//
//     barrier          arrivals                              waits for it
//     full[s]          1: the producer, with SMEM_STAGE_BYTES     the consumer threads of this block that read the stage:
//                                                            all, or with kPingpong those of one warpgroup
//     empty[s]         4 kWarpgroupsPerTile kNumMulticast: lane r of each     the producer
//                      warp that has read the stage, of any
//                      block of the cluster, arrives at
//                      block r's
//     turn[w]          4: lane 0 of each warp of the other   consumer w, before its main loop; with kPingpong only
//                      consumer, after its main loop
//     sum              1: thread 0, expecting all slices      all consumers, with kClusterK only (cluster.cuh)
//     named 1 + w      128: consumer w                       consumer w, around its staging buffers and flag
//     named 4          128 kWarpgroupsPerTile: consumers of a tile      those, when b's planes are written; with kSplitPlanesB only
//     cluster          all threads of all blocks             all: before the first use of a remote barrier, and
//                                                            before a block ends that others may still signal;
//                                                            with kClusterK also before sums are sent to others
//
// In a cluster all blocks walk the same pieces. Those beside each other share a's tile, those below each other b's: each
// of them loads its part of it and multicasts that to all: so full[s] expects all of it, though only a part was asked
// for here. With kClusterK there are as many of each block, and each of those has a part of k.
#include "cluster.cuh"
#include "mainloop.cuh"
#include "split_k.cuh"

#if GEMM_CLUSTER_M * GEMM_CLUSTER_N * GEMM_CLUSTER_K > 1
#define CLUSTER_SHAPE __cluster_dims__(kClusterSize, 1, 1)
#else
#define CLUSTER_SHAPE
#endif

// Which of the blocks below each other block `rank` of the cluster is, of those beside each other, and of those that
// share k.
DEVICE u32 rank_m(u32 rank) { return rank % kClusterM; }
DEVICE u32 rank_n(u32 rank) { return rank / kClusterM % kClusterN; }
DEVICE u32 rank_k(u32 rank) { return rank / kNumMulticast; }

// One operand's tile: `rows` elements of `size` bytes along m (n) from `first` on, and block `k` of k. The blocks of the
// cluster in the bit mask `sharing`, `parts` of them, share it; this one loads part number `part`, for all of them.
template <bool mn_major, u32 rows, u32 size, u32 parts>
DEVICE void load_tile(const TensorMap* map, u32 to, int first, int k, int z, u32 barrier, u32 part, u32 sharing) {
    if constexpr (mn_major) {
        constexpr u32 wide = MN_ROW_BYTES / size, deep = BLOCK_K / parts;  // elements along m (n) and k that a box has
#pragma unroll
        for (u32 slab = 0; slab < (rows + wide - 1) / wide; ++slab) {
            const u32 place = to + (slab * BLOCK_K + part * deep) * MN_ROW_BYTES;
            const int x = first + wide * slab, y = k * BLOCK_K + part * deep;
            if constexpr (parts > 1)
                tma_load_multicast(place, map, x, y, z, barrier, sharing);
            else
                tma_load(place, map, x, y, z, barrier);
        }
    } else {
        constexpr u32 high = rows / parts;
        const u32 place = to + part * high * BLOCK_K * size;
        const int x = k * BLOCK_K, y = first + part * high;
        if constexpr (parts > 1)
            tma_load_multicast(place, map, x, y, z, barrier, sharing);
        else
            tma_load(place, map, x, y, z, barrier);
    }
}

// One block of each row of the cluster's blocks, as a bit mask: kClusterN of them, kClusterM apart.
DEVICE constexpr u32 beside() {
    u32 mask = 0;
    for (u32 column = 0; column < kClusterN; ++column) mask |= 1u << column * kClusterM;
    return mask;
}

// By one thread; `piece` is its first one.
DEVICE void produce(const Params& p, const TensorMap* map_a, const TensorMap* map_b, u32 base, u32 rank,
                    WorkTile work) {
    const u32 first = rank_k(rank) * kNumMulticast;  // of the blocks with the same part of k
    const u32 sharing_a = beside() << first + rank_m(rank);
    const u32 sharing_b = (1u << kClusterM) - 1 << first + rank_n(rank) * kClusterM;
    PipelineState<kNumStages> at;
    const int clusters = gridDim.x / kClusterSize;
    for (int index = blockIdx.x / kClusterSize; index < p.schedule.work_tiles; index += clusters) {
        if (index >= clusters) work = work_tile_at<kClusterK, kSplitK>(p.schedule, index, rank_k(rank));
        const int m = (work.row * kClusterM + rank_m(rank)) * BLOCK_M;
        const int n = (work.column * kClusterN + rank_n(rank)) * BLOCK_N;
#pragma unroll 1
        for (int block = 0; block < work.blocks; ++block) {
            const u32 full = base + SMEM_FULL_OFFSET + 8 * at.stage, empty = base + SMEM_EMPTY_OFFSET + 8 * at.stage;
            barrier_wait(empty, at.parity ^ 1);
            barrier_arrive_expect(full, SMEM_STAGE_BYTES);
            const u32 stage = base + at.stage * SMEM_STAGE_BYTES;
            const int k = work.first_block + block;
#pragma unroll 1  // the producer has 40 registers
            for (u32 plane = 0; plane < kNumPlanes; ++plane) {
                if (plane < kNumPlanesA)
                    load_tile<kMnMajorA, BLOCK_M, kElementBytesA, kClusterN>(
                        map_a, stage + plane * SMEM_A_BYTES, m, k + p.a_block,
                        work.batch * p.a_step * kNumPlanesA + plane, full, rank_n(rank), sharing_a);
                if (plane < kNumPlanesB)
                    load_tile<kMnMajorB, BLOCK_N, kElementBytesB, kClusterM>(
                        map_b, stage + SMEM_B_OFFSET + plane * SMEM_B_BYTES, n, k + p.b_block,
                        work.batch * p.b_step * kNumPlanesB + plane, full, rank_m(rank), sharing_b);
            }
            at.advance();
        }
    }
    if (p.next == LOADED) launch_dependent_grids();
}

DEVICE TileCoord tile_coord(const WorkTile& work, u32 rank, u32 share, u32 warp, u32 lane) {
    TileCoord place;
    place.row0 = (work.row * kClusterM + rank_m(rank)) * BLOCK_M + share * kNumFragments * 64;
    place.column0 = (work.column * kClusterN + rank_n(rank)) * BLOCK_N + rank_k(rank) * OUT_N;
    place.row = place.row0 + 16 * warp + lane / 4;
    place.column = place.column0 + 2 * (lane % 4);
    place.batch = work.batch;
    return place;
}

// From a consumer's sums to d, or to the other parts of a split k.
DEVICE void finish_tile(const Params& p, const TensorMap* map_d, Results& acc, const WorkTile& work, u32 base, u32 rank,
                        u32 warpgroup, u32 warp, u32 lane, u32 marks, u32& sent) {
    const u32 share = kPingpong ? 0 : warpgroup;  // of a tile
    if constexpr (kSplitK) {
        if (p.schedule.splits > 1) {
            // Words through which the parts of a tile tell each other of marks: no other tile's, or results would depend on
            // whether that one has come first.
            u32 *of_a = nullptr, *of_b = nullptr;
            if constexpr (kNumPlanes > 1 && kRegistersA) {
                const u32 row = work.batch * p.schedule.tiles_m + work.row;
                of_a = p.a_marks + group_word((row * kClusterM + rank_m(rank)) * kWarpgroupsPerTile + share);
                if ((marks & 3) != 0 && lane == 0) mark(p.a_marks, marks & 3), mark(of_a, marks & 3);
            }
            if constexpr (kSplitPlanesB) {
                of_b = p.b_marks + group_word(work.batch * p.schedule.tiles_n + work.column);
                if (marks >> 2 != 0 && lane == 0) mark(p.b_marks, marks >> 2), mark(of_b, marks >> 2);
            }
            const long long matrix = static_cast<long long>(work.batch) * p.schedule.tiles_m * p.schedule.tiles_n;
            const long long slot = ((matrix + work.tile) * kClusterSize + rank) * kWarpgroupsPerTile + share;
            Float4* parts = p.partials + slot * p.schedule.splits * PARTIALS + threadIdx.x % 128;
            const u32 flag = base + SMEM_FLAG_OFFSET + 4 * warpgroup;
            if (reduces_by_slices(p)) {
                const TileCoord place = tile_coord(work, rank, share, warp, lane);
                reduce_by_slices(p, acc, parts, place, work.split, p.counters + slot, warpgroup, flag, of_a, of_b,
                                 marks);
                return;
            }
            if (!reduce_by_last(p, acc, parts, work.split, p.counters + slot, warpgroup, flag)) return;
            marks = all_marks(of_a, of_b, marks);
        }
    }
    const TileCoord place = tile_coord(work, rank, share, warp, lane);
    if constexpr (kNumPlanes > 1) repair(p, acc, place, marks);
    const u32 staging = base + SMEM_STORE_OFFSET + warpgroup * kNumStoreStages * SMEM_STORE_BYTES;
    store_tile(p, map_d, acc, place, staging, warpgroup, sent);
}

DEVICE void consume(const Params& p, const TensorMap* map_d, u32 base, u32 rank, u32 warpgroup) {
    const u32 lane = lane_id(), warp = warp_id() % 4;
    const u32 share = kPingpong ? 0 : warpgroup;  // of a tile
    PipelineState<kNumStages> at;
    PingpongOrder order(base, warpgroup);
    u32 sent = 0;
    const Tf32Loader tf32(warp, lane);
    u32 marks = kNumPlanes > 1 && !kRegistersA ? p.a_marks[0] : 0;
    for (int index = blockIdx.x / kClusterSize; index < p.schedule.work_tiles; index += gridDim.x / kClusterSize) {
        const WorkTile work = work_tile_at<kClusterK, kSplitK>(p.schedule, index, rank_k(rank));
        if (!order.mine()) {
            at.skip(work.blocks);
            continue;
        }
        Accumulators acc WRITTEN_BY_WGMMA;
        if constexpr (kNumPlanes > 1 && kRegistersA) {
            SplitLoader a(warp, lane, kSplitPlanesB || p.b_marks[0] != 0);
            BSplitter b(share);
            accumulate_split_fragments(acc, work, base, at, share, a, b, lane);
            marks = kSplitPlanesB ? mark_word(a, b) : warp_or(a.seen.marks());
        } else if constexpr (kNumPlanes > 1)
            accumulate_planes(acc, work, base, at, share, lane);
        else if constexpr (kRegistersA)
            accumulate_tf32_fragments(acc, work, base, at, order, share, tf32, lane);
        else
            accumulate(acc, work, base, at, order, share, lane);

#if GEMM_CLUSTER_K > 1
        Results sums;
        if (!reduce_cluster(sums, acc, base, rank, rank_k(rank), share, marks)) break;
#else
        Results& sums = acc;
        if (kSplitPlanesB) {
            if (lane == 0) store_shared(mark_at(base, 0, 4 * share + warp), marks);
            named_sync(TILE_SYNC, 128 * kWarpgroupsPerTile);
        }
#endif
        if constexpr (kSplitPlanesB) marks = gathered_marks(base, 4 * share + warp, lane);
        if (p.next == SUMMED && index + gridDim.x / kClusterSize >= p.schedule.work_tiles) launch_dependent_grids();
        finish_tile(p, map_d, sums, work, base, rank, warpgroup, warp, lane, marks, sent);
    }
    if constexpr (kNumPlanes > 1 && (!kSplitPlanesB || kSplitK)) clear_marks(p, warpgroup);
    // Shared memory must outlive the stores that read it.
    if (kTmaStore && lane == 0) tma_store_wait_all();
}

GLOBAL_KERNEL void CLUSTER_SHAPE __launch_bounds__(kNumThreads, 1)
    gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
         const __grid_constant__ TensorMap map_d, const __grid_constant__ Params p) {
    const u32 base = (dynamic_shared() + 1023) / 1024 * 1024;
    const u32 rank = kClusterSize > 1 ? cluster_rank() : 0;

    if (threadIdx.x == 0) {
        prefetch_map(&map_a);
        prefetch_map(&map_b);
        if (kTmaStore) prefetch_map(&map_d);
        for (u32 stage = 0; stage < kNumStages; ++stage) {
            barrier_init(base + SMEM_FULL_OFFSET + 8 * stage, 1);
            barrier_init(base + SMEM_EMPTY_OFFSET + 8 * stage, 4 * kWarpgroupsPerTile * kNumMulticast);
        }
        for (u32 w = 0; kPingpong && w < kNumConsumers; ++w) barrier_init(base + SMEM_ORDER_OFFSET + 8 * w, 4);
        if (kClusterK > 1) init_cluster_sum(base, rank_k(rank));
        barrier_init_fence();
    }
    if constexpr (kNumMulticast > 1)
        cluster_sync();
    else
        block_sync();
    const WorkTile first = work_tile_at<kClusterK, kSplitK>(p.schedule, blockIdx.x / kClusterSize, rank_k(rank));
    wait_on_dependent_grids();  // what is above is done while it ends

    const u32 warpgroup = warp_id() / 4;
    if (warpgroup == 0) {
        // 384 threads start with 168 registers each: 128 * 40 + 256 * 232 are as many. 512 start with 128 each.
        if constexpr (kNumConsumers > 1) warpgroup_reg_dealloc<40>();
        if (warp_id() == 0 && elect_one()) produce(p, &map_a, &map_b, base, rank, first);
        if constexpr (kClusterK > 1) join_cluster_barriers();
    } else {
        if constexpr (kNumConsumers > 1) warpgroup_reg_alloc<kNumConsumers == 2 ? 232 : 152>();
        consume(p, &map_d, base, rank, warpgroup - 1);
    }
    if constexpr (kClusterK > 1)
        cluster_wait();
    else if constexpr (kNumMulticast > 1)
        cluster_sync();
}
