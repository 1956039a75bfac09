// D = activation(alpha * A B + beta * C + bias) on Hopper: A is M x K, B is K x N, accumulated in float32.
//
// This file is a persistent, warp-specialised 16-bit GEMM: TMA loads, wgmma from shared memory, epilogue, TMA stores. What
// other variants do besides is in headers, whose functions are empty where a variant does not need them:
//
//     emulation.cuh    float32, as products of bfloat16 planes; f16_emulation.cuh of float16 planes, f16_registers.cuh of
//                      such planes of A that consumers make; rejected_tiles.cuh decides between both for each tile;
//                      bf16x3.cuh to 16 bits by two planes of bfloat16
//     eight_bit.cuh    8-bit operands, with quantization scales
//     split_k.cuh      K split among CTAs that add through global memory
//     cluster.cuh      CTAs of a cluster that share K; tma_load.cuh those that multicast operands
//     mirror.cuh       symmetric D: half of the tiles, stored at both sides of the diagonal
//     pingpong.cuh     two consumers that compute different tiles
//     group_cursor.cuh groups of rows, each multiplied by a matrix of its own; their ends are on the device
//     fragments.cuh    A through registers; shifted_rows.cuh A in rows that TMA cannot take as they are
//
// A variant is a set of constants (config.cuh). A CTA has one producer warpgroup and kNumConsumers consumer warpgroups:
//
//     threads              role        does
//     one of 0..31         producer    TMA loads of A's and B's tiles into the ring of stages
//     others up to 127     -           idle; they are there to give their registers to the consumers
//     128 (1 + w)..        consumer w  wgmma on full stages, and the epilogue: for rows [w, w + 1) BLOCK_M / kNumConsumers
//                                      of every tile, or with kPingpong for all rows of every other tile
//
// Synchronisation (pipeline.cuh describes the ring):
//
//     barrier          arrivals                              waits for it
//     full[s]          1: the producer, with the bytes of    the consumer threads of this CTA that read the stage:
//                      the stage                             all, or with kPingpong those of one warpgroup
//     empty[s]         4 kWarpgroupsPerTile kNumMulticast:   the producer
//                      lane r of each warp that has read
//                      the stage, of any CTA that
//                      multicasts, arrives at CTA r's
//     order[w]         4: lane 0 of each warp of the other   consumer w, before its main loop; kPingpong only
//                      consumer, after its main loop
//     turn[w]          4: the same, after the wgmmas of a    consumer w, before its wgmmas; f16_registers.cuh only
//                      span
//     sum              1: thread 0, expecting all slices     all consumers; kClusterK only
//     named 1 + w      128: consumer w                       consumer w, around its staging buffers and flag
//     named 4          all consumers of a tile               those, when B's planes are written; kSplitPlanesB only
//     cluster          all threads of all CTAs               all: before the first use of a remote barrier, and before a
//                                                            CTA ends that others may still signal; with kClusterK also
//                                                            before slices are sent to others
//
// In a cluster all CTAs compute the same work tiles. Those beside each other share A's tile, those below each other B's:
// each loads its part and multicasts it to all. So full[s] expects all bytes, though this CTA loads a part only.
#include "cluster.cuh"
#include "mainloop.cuh"
#include "mirror.cuh"
#include "split_k.cuh"
#include "tma_load.cuh"

constexpr int SCHEDULED_M = kSymmetric ? BLOCK_M * kClusterM : 0, SCHEDULED_N = kSymmetric ? BLOCK_N * kClusterN : 0;

DEVICE WorkTile scheduled(const TileSchedule& schedule, int index, u32 part) {
    return work_tile_at<kClusterK, kSplitK, SCHEDULED_M, SCHEDULED_N>(schedule, index, part);
}

// By one thread; `work` is its first work tile.
DEVICE void produce(const Params& p, const OperandMaps& maps, u32 smem, u32 cta_rank, WorkTile work, LeftTiles left) {
    const Multicast multicast(cta_rank);
    Pipeline pipe;
    EarlyExit early_exit;
    GroupCursor cursor(p);
    const int clusters = gridDim.x / kClusterSize;
    for (int index = blockIdx.x / kClusterSize; kWalksGroups || index < p.schedule.work_tiles; index += clusters) {
        if constexpr (kWalksGroups) {
            if (!cursor.find(p, index, work)) break;
        } else {
            if (index >= clusters) work = scheduled(p.schedule, index, rank_k(cta_rank));
            cursor.take_depth(p, work);
            if (left.has(p, work)) continue;
        }
        const int m = tile_row(work, cta_rank), n = tile_column(work, cta_rank);
#pragma unroll 1
        for (int block = 0; block < kNumProducts * work.k_blocks; ++block) {
            const u32 full = smem + SMEM_FULL_OFFSET + 8 * pipe.stage;
            const u32 empty = smem + SMEM_EMPTY_OFFSET + 8 * pipe.stage;
            barrier_wait(empty, pipe.parity ^ 1);
            if (early_exit.taken(p, smem, pipe, block)) return;
            barrier_arrive_expect(full, SMEM_STAGE_BYTES);
            load_stage(p, maps, smem + pipe.stage * SMEM_STAGE_BYTES, m, n, work, block, full, multicast);
            pipe.advance();
        }
    }
    if (p.next == LOADED) launch_dependent_grids();
}

// By a consumer warpgroup.
DEVICE void consume(const Params& p, const TensorMap* map_d, u32 smem, u32 cta_rank, u32 warpgroup, LeftTiles left) {
    const u32 lane = lane_id(), warp = warp_id() % 4;
    const TileContext ctx = {smem, cta_rank, warpgroup, warp, lane};

    Pipeline pipe;
    PingpongOrder order(ctx);
    u32 sent = 0;  // staging buffers that were stored
    const RegisterLoader loader(p, ctx.warp, ctx.lane);
    Emulation emulation(p);
    GroupCursor cursor(p);
    for (int index = blockIdx.x / kClusterSize; kWalksGroups || index < p.schedule.work_tiles;
         index += gridDim.x / kClusterSize) {
        WorkTile work;
        if constexpr (kWalksGroups) {
            if (!cursor.find(p, index, work)) break;
        } else {
            work = scheduled(p.schedule, index, rank_k(ctx.cta_rank));
            cursor.take_depth(p, work);
            if (left.has(p, work)) continue;
        }
        if (!order.next_is_mine()) {
            pipe.skip(kNumProducts * work.k_blocks);
            continue;
        }
        prefetch_addend(p, TileCoord(work, ctx));
        Accumulators acc WRITTEN_BY_WGMMA;
        if (!accumulate(acc, p, work, ctx, pipe, order, loader, emulation)) break;

        Results slice;
        if (!reduce_cluster(slice, acc, ctx, emulation)) break;
        Results& sums = cluster_results(acc, slice);
        emulation.gather(ctx);
        if (p.next == SUMMED && index + gridDim.x / kClusterSize >= p.schedule.work_tiles) launch_dependent_grids();
        const Reduced reduced = reduce_split_k(p, sums, work, ctx, emulation);
        if (reduced == ALL_DONE) break;
        if (reduced == DONE) continue;

        const TileCoord at(work, ctx);
        emulation.repair(p, sums, at);
        if constexpr (kSymmetric)
            store_symmetric(p, map_d, sums, at, ctx);
        else
            store_tile(p, map_d, sums, at, ctx, sent);
    }
    emulation.finish(p, ctx);
    if constexpr (kWalksGroups) clear_behind_groups(p, cursor.end, ctx);
    // Shared memory must outlive the TMA stores that read it.
    if (kTmaStore && ctx.lane == 0) tma_store_wait_all();
}

// `map_d`: D's map; with kShifted, where TMA does not store D, A's second map.
GLOBAL_KERNEL void CLUSTER_SHAPE __launch_bounds__(kNumThreads, 1)
    gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
         const __grid_constant__ TensorMap map_d, const __grid_constant__ Params p) {
    const u32 smem = (dynamic_shared() + 1023) / 1024 * 1024;
    const u32 cta_rank = kClusterSize > 1 ? cluster_rank() : 0;

    if (threadIdx.x == 0) {
        prefetch_map(&map_a);
        prefetch_map(&map_b);
        if (kTmaStore || kShifted) prefetch_map(&map_d);
        for (u32 stage = 0; stage < kNumStages; ++stage) {
            barrier_init(smem + SMEM_FULL_OFFSET + 8 * stage, 1);
            barrier_init(smem + SMEM_EMPTY_OFFSET + 8 * stage, 4 * kWarpgroupsPerTile * kNumMulticast);
        }
        init_pingpong_order(smem);
        init_stagger(smem);
        init_turns(smem);
        init_cluster_sum(smem, cta_rank);
        barrier_init_fence();
    }
    sync_new_barriers();
    WorkTile first;  // of groups it is known only where their ends are
    if constexpr (!kWalksGroups)
        first = scheduled(p.schedule, blockIdx.x / kClusterSize, rank_k(cta_rank));
    if (p.next == STARTED) launch_dependent_grids();
    wait_on_dependent_grids();  // what is above is done while the kernel before this one ends
    const LeftTiles left(p);
    if (left.all) return;

    const u32 warpgroup = warp_id() / 4;
    if (warpgroup == 0) {
        // 384 threads start with 168 registers each: 128 * 40 + 256 * 232 are as many.
        if constexpr (kNumConsumers > 1) warpgroup_reg_dealloc<40>();
        if (warp_id() == 0 && elect_one()) produce(p, {&map_a, &map_b, &map_d}, smem, cta_rank, first, left);
        join_cluster_barriers();
    } else {
        if constexpr (kNumConsumers > 1) warpgroup_reg_alloc<232>();
        consume(p, &map_d, smem, cta_rank, warpgroup - 1, left);
    }
    leave_cluster();
}
