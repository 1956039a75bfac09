// d = activation(alpha * a b + beta * c + bias) on Hopper: a m x k, b k x n, accumulated in float32.
//
// Persistent thread blocks; each consists of one producer warpgroup and CONSUMERS consumer warpgroups:
//
//     threads              role        does
//     one of 0..31         producer    TMA loads of a's and b's tiles into the ring of stages
//     others up to 127     -           idle; they are there to give their registers to the consumers
//     128 (1 + w)..        consumer w  wgmma on full stages, and the epilogue: of rows [w, w + 1) TILE_M / CONSUMERS of
//                                      every tile, or with PINGPONG of all rows of every other tile (turns.cuh)
//
// Synchronisation (the ring is described in pipeline.cuh):
//
//     barrier          arrivals                              waits for it
//     full[s]          1: the producer, with STAGE_BYTES     the consumer threads of this block that read the stage:
//                                                            all, or with PINGPONG those of one warpgroup
//     empty[s]         4 SHARERS SHARING: lane r of each     the producer
//                      warp that has read the stage, of any
//                      block of the cluster, arrives at
//                      block r's
//     turn[w]          4: lane 0 of each warp of the other   consumer w, before its main loop; with PINGPONG only
//                      consumer, after its main loop
//     sum              1: thread 0, expecting all slices      all consumers, with CLUSTER_K only (cluster_sum.cuh)
//     named 1 + w      128: consumer w                       consumer w, around its staging buffers and flag
//     named 4          128 SHARERS: consumers of a tile      those, when b's planes are written; with B_SPLIT only
//     cluster          all threads of all blocks             all: before the first use of a remote barrier, and
//                                                            before a block ends that others may still signal;
//                                                            with CLUSTER_K also before sums are sent to others
//
// In a cluster all blocks walk the same pieces. Those beside each other share a's tile, those below each other b's: each
// of them loads its part of it and multicasts that to all: so full[s] expects all of it, though only a part was asked
// for here. With CLUSTER_K there are as many of each block, and each of those has a part of k.
#include "cluster_sum.cuh"
#include "mainloop.cuh"
#include "split_k.cuh"

#if CLUSTER_M * CLUSTER_N * CLUSTER_K > 1
#define CLUSTER_SHAPE __cluster_dims__(CLUSTER_M* CLUSTER_N* CLUSTER_K, 1, 1)
#else
#define CLUSTER_SHAPE
#endif

// Which of the blocks below each other block `rank` of the cluster is, of those beside each other, and of those that
// share k.
DEVICE u32 rank_m(u32 rank) { return rank % CLUSTER_M; }
DEVICE u32 rank_n(u32 rank) { return rank / CLUSTER_M % CLUSTER_N; }
DEVICE u32 rank_k(u32 rank) { return rank / SHARING; }

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

// One block of each row of the cluster's blocks, as a bit mask: CLUSTER_N of them, CLUSTER_M apart.
DEVICE constexpr u32 beside() {
    u32 mask = 0;
    for (u32 column = 0; column < CLUSTER_N; ++column) mask |= 1u << column * CLUSTER_M;
    return mask;
}

// By one thread; `piece` is its first one.
DEVICE void produce(const Params& p, const TensorMap* map_a, const TensorMap* map_b, u32 base, u32 rank, Piece piece) {
    const u32 first = rank_k(rank) * SHARING;  // of the blocks with the same part of k
    const u32 sharing_a = beside() << first + rank_m(rank);
    const u32 sharing_b = (1u << CLUSTER_M) - 1 << first + rank_n(rank) * CLUSTER_M;
    Position<STAGES> at;
    const int clusters = gridDim.x / CLUSTER;
    for (int index = blockIdx.x / CLUSTER; index < p.walk.pieces; index += clusters) {
        if (index >= clusters) piece = piece_at<CLUSTER_K, SPLIT>(p.walk, index, rank_k(rank));
        const int m = (piece.row * CLUSTER_M + rank_m(rank)) * TILE_M;
        const int n = (piece.column * CLUSTER_N + rank_n(rank)) * TILE_N;
#pragma unroll 1
        for (int block = 0; block < piece.blocks; ++block) {
            const u32 full = base + FULL_AT + 8 * at.stage, empty = base + EMPTY_AT + 8 * at.stage;
            barrier_wait(empty, at.parity ^ 1);
            barrier_arrive_expect(full, STAGE_BYTES);
            const u32 stage = base + at.stage * STAGE_BYTES;
            const int k = piece.first_block + block;
#pragma unroll 1  // the producer has 40 registers
            for (u32 plane = 0; plane < PLANES; ++plane) {
                if (plane < A_PLANES)
                    load_tile<A_MN, TILE_M, A_ELEMENT, CLUSTER_N>(map_a, stage + plane * A_BYTES, m, k + p.a_block,
                                                                  piece.batch * p.a_step * A_PLANES + plane, full,
                                                                  rank_n(rank), sharing_a);
                if (plane < B_PLANES)
                    load_tile<B_MN, TILE_N, B_ELEMENT, CLUSTER_M>(map_b, stage + B_AT + plane * B_BYTES, n,
                                                                  k + p.b_block,
                                                                  piece.batch * p.b_step * B_PLANES + plane, full,
                                                                  rank_m(rank), sharing_b);
            }
            at.advance();
        }
    }
    if (p.next == LOADED) allow_next();
}

DEVICE Place place_of(const Piece& piece, u32 rank, u32 share, u32 warp, u32 lane) {
    Place place;
    place.row0 = (piece.row * CLUSTER_M + rank_m(rank)) * TILE_M + share * M_BLOCKS * 64;
    place.column0 = (piece.column * CLUSTER_N + rank_n(rank)) * TILE_N + rank_k(rank) * OUT_N;
    place.row = place.row0 + 16 * warp + lane / 4;
    place.column = place.column0 + 2 * (lane % 4);
    place.batch = piece.batch;
    return place;
}

// From a consumer's sums to d, or to the other parts of a split k.
DEVICE void finish_tile(const Params& p, const TensorMap* map_d, Results& acc, const Piece& piece, u32 base, u32 rank,
                        u32 warpgroup, u32 warp, u32 lane, u32 marks, u32& sent) {
    const u32 share = PINGPONG ? 0 : warpgroup;  // of a tile
    if constexpr (SPLIT) {
        if (p.walk.splits > 1) {
            // Words through which the parts of a tile tell each other of marks: no other tile's, or results would depend on
            // whether that one has come first.
            u32 *of_a = nullptr, *of_b = nullptr;
            if constexpr (PLANES > 1 && A_REGISTERS) {
                const u32 row = piece.batch * p.walk.tiles_m + piece.row;
                of_a = p.a_marks + group_word((row * CLUSTER_M + rank_m(rank)) * SHARERS + share);
                if ((marks & 3) != 0 && lane == 0) mark(p.a_marks, marks & 3), mark(of_a, marks & 3);
            }
            if constexpr (B_SPLIT) {
                of_b = p.b_marks + group_word(piece.batch * p.walk.tiles_n + piece.column);
                if (marks >> 2 != 0 && lane == 0) mark(p.b_marks, marks >> 2), mark(of_b, marks >> 2);
            }
            const long long matrix = static_cast<long long>(piece.batch) * p.walk.tiles_m * p.walk.tiles_n;
            const long long slot = ((matrix + piece.tile) * CLUSTER + rank) * SHARERS + share;
            Float4* parts = p.partials + slot * p.walk.splits * PART + threadIdx.x % 128;
            const u32 flag = base + LAST_AT + 4 * warpgroup;
            if (in_slices(p)) {
                const Place place = place_of(piece, rank, share, warp, lane);
                add_slices(p, acc, parts, place, piece.split, p.counters + slot, warpgroup, flag, of_a, of_b, marks);
                return;
            }
            if (!add_parts(p, acc, parts, piece.split, p.counters + slot, warpgroup, flag)) return;
            marks = all_marks(of_a, of_b, marks);
        }
    }
    const Place place = place_of(piece, rank, share, warp, lane);
    if constexpr (PLANES > 1) repair(p, acc, place, marks);
    const u32 staging = base + STAGING_AT + warpgroup * STAGING * CHUNK_BYTES;
    store_tile(p, map_d, acc, place, staging, warpgroup, sent);
}

DEVICE void consume(const Params& p, const TensorMap* map_d, u32 base, u32 rank, u32 warpgroup) {
    const u32 lane = lane_id(), warp = warp_id() % 4;
    const u32 share = PINGPONG ? 0 : warpgroup;  // of a tile
    Position<STAGES> at;
    Turn turn(base, warpgroup);
    u32 sent = 0;
    const Tf32Loader tf32(warp, lane);
    u32 marks = PLANES > 1 && !A_REGISTERS ? p.a_marks[0] : 0;
    for (int index = blockIdx.x / CLUSTER; index < p.walk.pieces; index += gridDim.x / CLUSTER) {
        const Piece piece = piece_at<CLUSTER_K, SPLIT>(p.walk, index, rank_k(rank));
        if (!turn.mine()) {
            at.skip(piece.blocks);
            continue;
        }
#if __CUDACC_VER_MAJOR__ < 13
        Accumulators acc = {};  // else ptxas takes them for defined within the loop, and serialises wgmma
#else
        Accumulators acc;
#endif
        if constexpr (PLANES > 1 && A_REGISTERS) {
            SplitLoader a(warp, lane, B_SPLIT || p.b_marks[0] != 0);
            BSplitter b(share);
            accumulate_split_fragments(acc, piece, base, at, share, a, b, lane);
            marks = B_SPLIT ? mark_word(a, b) : warp_or(a.seen.marks());
        } else if constexpr (PLANES > 1)
            accumulate_planes(acc, piece, base, at, share, lane);
        else if constexpr (A_REGISTERS)
            accumulate_tf32_fragments(acc, piece, base, at, turn, share, tf32, lane);
        else
            accumulate(acc, piece, base, at, turn, share, lane);

#if CLUSTER_K > 1
        Results sums;
        if (!add_cluster(sums, acc, base, rank, rank_k(rank), share, marks)) break;
#else
        Results& sums = acc;
        if (B_SPLIT) {
            if (lane == 0) store_shared(mark_at(base, 0, 4 * share + warp), marks);
            named_sync(TILE_SYNC, 128 * SHARERS);
        }
#endif
        if constexpr (B_SPLIT) marks = gathered_marks(base, 4 * share + warp, lane);
        if (p.next == SUMMED && index + gridDim.x / CLUSTER >= p.walk.pieces) allow_next();
        finish_tile(p, map_d, sums, piece, base, rank, warpgroup, warp, lane, marks, sent);
    }
    if constexpr (PLANES > 1 && (!B_SPLIT || SPLIT)) clear_marks(p, warpgroup);
    // Shared memory must outlive the stores that read it.
    if (TMA_STORE && lane == 0) tma_store_wait_all();
}

GLOBAL_KERNEL void CLUSTER_SHAPE __launch_bounds__(THREADS, 1)
    gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
         const __grid_constant__ TensorMap map_d, const __grid_constant__ Params p) {
    const u32 base = (dynamic_shared() + 1023) / 1024 * 1024;
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;

    if (threadIdx.x == 0) {
        prefetch_map(&map_a);
        prefetch_map(&map_b);
        if (TMA_STORE) prefetch_map(&map_d);
        for (u32 stage = 0; stage < STAGES; ++stage) {
            barrier_init(base + FULL_AT + 8 * stage, 1);
            barrier_init(base + EMPTY_AT + 8 * stage, 4 * SHARERS * SHARING);
        }
        for (u32 w = 0; PINGPONG && w < CONSUMERS; ++w) barrier_init(base + TURN_AT + 8 * w, 4);
        if (CLUSTER_K > 1) expect_slices(base, rank_k(rank));
        barrier_init_fence();
    }
    if constexpr (SHARING > 1)
        cluster_sync();
    else
        block_sync();
    const Piece first = piece_at<CLUSTER_K, SPLIT>(p.walk, blockIdx.x / CLUSTER, rank_k(rank));
    wait_for_previous();  // what is above is done while it ends

    const u32 warpgroup = warp_id() / 4;
    if (warpgroup == 0) {
        // 384 threads start with 168 registers each: 128 * 40 + 256 * 232 are as many. 512 start with 128 each.
        if constexpr (CONSUMERS > 1) give_registers<40>();
        if (warp_id() == 0 && elected()) produce(p, &map_a, &map_b, base, rank, first);
        if constexpr (CLUSTER_K > 1) let_add_cluster();
    } else {
        if constexpr (CONSUMERS > 1) take_registers<CONSUMERS == 2 ? 232 : 152>();
        consume(p, &map_d, base, rank, warpgroup - 1);
    }
    if constexpr (CLUSTER_K > 1)
        cluster_wait();
    else if constexpr (SHARING > 1)
        cluster_sync();
}
