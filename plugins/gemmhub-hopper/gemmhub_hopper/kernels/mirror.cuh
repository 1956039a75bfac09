// Symmetric products: the elements at and below the diagonal of D are computed, and each is stored on both sides of it. The
// bits above the diagonal are copies, so that D is symmetric whatever the order of operands and sums.
//
// The scheduler leaves out cluster tiles that lie above the diagonal (Triangle in tile_scheduler.cuh). Of the others a consumer
// warpgroup finishes store blocks of 64 rows x STORE_BLOCK_N columns one by one. A block lies
//
//     below the diagonal   it is stored as that of any product, and its transpose above the diagonal
//     across it            its elements at and below the diagonal are stored one by one, on both sides
//     above it             nothing is stored
//
// The first staging buffer has the block as it is, the second one its transpose, from the same registers. Warps store the
// second one, so that its rows need no tensor map of other boxes. Only the lower triangle of C is read into the result, and no CTA
// stores an element of that triangle which another one reads: C may be D.
#pragma once
#include "epilogue.cuh"

// The row of D and the column from which a store block begins are `m` and `n`.
DEVICE bool lies_above(int m, int n) { return m + 63 < n; }
DEVICE bool lies_below(int m, int n) { return m >= n + static_cast<int>(STORE_BLOCK_N) - 1; }

// The transpose of a block below the diagonal.
DEVICE void store_transpose(const Params& p, u32 mirror, int m, int n, int batch, TileContext ctx) {
    constexpr int ELEMENTS = 128 / kOutputBytes;  // of a row of a box
#pragma unroll
    for (u32 box = 0; box < kNumMirrorBoxes; ++box) {
        const int column = m + ELEMENTS * static_cast<int>(box);
        store_rows<128, MIRROR_BOX_BYTES>(StoredMatrix::d(p), mirror + box * MIRROR_BOX_BYTES, n, column, p.n - n, p.m - column, batch, ctx);
    }
}

// Copies the element at `from` in shared memory to element (row, column) of a matrix of D.
DEVICE void store_element_of(const Params& p, u32 from, int row, int column, int batch) {
    const long long at = batch * p.d_batch + row * p.d_ld + column;
    if constexpr (kOutputBytes == 4)
        store_word(static_cast<u32*>(p.d) + at, load_shared(from));
    else
        store_half(static_cast<u16*>(p.d) + at, load_shared_half(from));
}

// The elements at and below the diagonal of a block across it, and then those that mirror them. Adjacent lanes store adjacent
// elements of D.
DEVICE void store_across(const Params& p, u32 buffer, u32 mirror, int m, int n, int batch, TileContext ctx) {
    constexpr int WIDTH = STORE_BLOCK_N, ELEMENTS = 128 / kOutputBytes;
    const int thread = 32 * ctx.warp + ctx.lane;
#pragma unroll 1
    for (int i = thread; i < 64 * WIDTH; i += 128) {
        const int row = i / WIDTH, column = i % WIDTH;
        if (m + row >= n + column && m + row < p.m)
            store_element_of(p, buffer + swizzled(row * STORE_ROW_BYTES + column * kOutputBytes, STORE_ROW_BYTES), m + row,
                             n + column, batch);
    }
#pragma unroll 1
    for (int i = thread; i < 64 * WIDTH; i += 128) {
        const int row = i % 64, column = i / 64;
        const u32 box = mirror + row / ELEMENTS * MIRROR_BOX_BYTES;
        if (m + row > n + column && m + row < p.m)
            store_element_of(p, box + swizzled(column * 128 + row % ELEMENTS * kOutputBytes, 128), n + column, m + row, batch);
    }
}

// Stores a tile of a symmetric D.
DEVICE void store_symmetric(const Params& p, const TensorMap* map, Results& acc, const TileCoord& at, TileContext ctx) {
    const u32 buffer = ctx.smem + SMEM_STORE_OFFSET + ctx.warpgroup * kNumStoreStages * SMEM_STORE_BYTES;
    const u32 mirror = buffer + SMEM_STORE_BYTES;
    const bool issues = threadIdx.x % 128 == 0;
    constexpr u32 BLOCKS = kNumFragments * kNumStoreBlocks;
    constexpr int UNROLLED = kInput == F16X3_INPUT ? BLOCKS : 1;  // as there are registers: each compiles without spills
#pragma unroll
    for (u32 i = 0; i < kNumFragments; ++i) multiply_by_alpha(p, acc[i]);
#pragma unroll UNROLLED
    for (u32 which = 0; which < BLOCKS; ++which) {
        const u32 number = which / kNumStoreBlocks, column = store_column(which % kNumStoreBlocks);
        const int m = at.row0 + 64 * number, n = at.column0 + column;
        if (m >= p.m || lies_above(m, n)) continue;
        if (kTmaStore && issues) tma_store_wait_read();
        named_sync(1 + ctx.warpgroup, 128);  // TMA and all threads have read what the buffers had
        if constexpr (kStagedAddend) {
            fill_addend(p, buffer, m, n, at.batch, ctx);
            sync_staged(ctx);
        }
        EpilogueFragment fragment(p, at, number);
#pragma unroll
        for (u32 block = 0; block < BLOCKS; ++block)  // registers have no addresses
            if (block == which)
                stage(p, fragment, acc[block / kNumStoreBlocks], store_column(block % kNumStoreBlocks), buffer);
        if constexpr (kTmaStore) {
            async_fence();  // by every thread that has written
            named_sync(1 + ctx.warpgroup, 128);
        } else {
            sync_stores(1 + ctx.warpgroup, 128);
        }
        if (!lies_below(m, n)) {
            store_across(p, buffer, mirror, m, n, at.batch, ctx);
            continue;
        }
        if constexpr (kTmaStore) {
            if (issues) {
                tma_store(map, buffer, n, m, at.batch, p.streamed);
                tma_store_commit();
            }
        } else {
            store_rows(StoredMatrix::d(p), buffer, m, n, p.m - m, p.n - n, at.batch, ctx);
        }
        store_transpose(p, mirror, m, n, at.batch, ctx);
    }
}

// As store_direct(): the elements at and below the diagonal of four that finish() has finished, on both sides of it.
DEVICE void store_both(const Params& p, const EpilogueFragment& fragment, const float (&v)[4], int j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int below = 8 * (i / 2), beside = 8 * j + i % 2, row = fragment.row + below, column = fragment.column + beside;
        if (below >= fragment.rows || row < column) continue;
        const long long matrix = fragment.d - (fragment.row * fragment.d_ld + fragment.column);
        store_element<kStored>(p.d, matrix + row * fragment.d_ld + column, v[i]);
        if (row > column) store_element<kStored>(p.d, matrix + column * fragment.d_ld + row, v[i]);
    }
}
