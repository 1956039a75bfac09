// C on its way to the epilogue. A thread's accumulators are two neighbours of each of many rows: loads of these alone would read
// few bytes of each line. So a warp loads its rows of a staging buffer, adjacent lanes adjacent units, and threads read from
// there what they add, before results take its place. Units have 16 bytes where address, rows and batch of C allow, else 4 or 2.
//
// Where C's elements have another size than D's (K passes), or partial sums go straight to D (split-K by slices), threads load
// elements of C (load_addends() in epilogue.cuh).
#pragma once
#include "elements.cuh"
#include "tile_context.cuh"

constexpr u32 kAddendBytes = kAddendType == 2 ? 4 : 2;
constexpr bool kStagedAddend = kHasAddend && kAddendBytes == kOutputBytes;

// C as rows of contiguous elements: those are D's rows, or its columns where D is transposed.
struct AddendRows {
    const char* at;     // element (row, column), from which on it has
    int rows, columns;  // so many

    DEVICE AddendRows(const Params& p, int row, int column, int batch) {
        at = static_cast<const char*>(p.c) + kAddendBytes * (batch * p.c_batch + row * p.c_ld + column);
        rows = (kTransposedD ? p.n : p.m) - row, columns = (kTransposedD ? p.m : p.n) - column;
    }
};

// Whether groups may begin at any element of a row of C.
constexpr bool kUnalignedGroups = kDivided == (kTransposedD ? ROWS : COLUMNS);

// Whether every row of C begins and ends at a multiple of `bytes`, and so does what is read of it, from element `first` on.
DEVICE bool addend_aligned(const Params& p, u32 bytes, int first) {
    const u64 begin = kUnalignedGroups ? static_cast<u32>(first) : 0;
    const u64 offsets = kAddendBytes * (static_cast<u64>(p.c_ld | p.c_batch | (kTransposedD ? p.m : p.n)) | begin);
    return ((reinterpret_cast<u64>(p.c) | offsets) & (bytes - 1)) == 0;
}

// Unit number `unit` of `bytes` bytes of a warp's rows of the box of a staging buffer at `box`.
template <u32 bytes>
struct AddendUnit {
    static constexpr u32 OF_ROW = STORE_ROW_BYTES / bytes, ROWS = STORE_BOX_BYTES / STORE_ROW_BYTES / 4;
    static constexpr u32 COUNT = OF_ROW * ROWS;

    int row, offset;  // in C, from where the box begins; bytes
    u32 place;        // in shared memory

    DEVICE AddendUnit(u32 box, u32 unit, u32 warp) {
        const u32 line = warp * ROWS + unit / OF_ROW;
        row = kShiftedRows && !kTransposedD ? shifted_row(line) : line, offset = unit % OF_ROW * bytes;
        place = box + swizzled(line * STORE_ROW_BYTES + offset, STORE_ROW_BYTES);
    }
};

// Fills a warp's rows of the box of a staging buffer at `box`, by units of 16 or 4 bytes, or elements of 2; what is outside of
// C is 0.
template <u32 bytes>
DEVICE void fill_rows(const Params& p, AddendRows c, u32 box, TileContext ctx) {
    using Unit = AddendUnit<bytes>;
    constexpr u32 AT_ONCE = bytes == 2 ? 8 : 1;  // loads to registers before the first one is stored
    static_assert(!kStagedAddend || Unit::COUNT % (32 * AT_ONCE) == 0, "all lanes have units");
#pragma unroll 1
    for (u32 first = ctx.lane; first < Unit::COUNT; first += 32 * AT_ONCE) {
        u32 half[AT_ONCE][1];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; ++i) {
            const Unit unit(box, first + 32 * i, ctx.warp);
            const bool there = unit.row < c.rows && unit.offset / static_cast<int>(kAddendBytes) < c.columns;
            const char* const from = c.at + kAddendBytes * (unit.row * p.c_ld) + unit.offset;
            if constexpr (bytes == 16) copy_async(unit.place, from, there);
            if constexpr (bytes == 4) copy_word_async(unit.place, from, there);
            if constexpr (bytes == 2) load_half_if(from, there, half[i]);
        }
        if constexpr (bytes == 2) {
            const u32 again = opaque(static_cast<int>(first));  // places are computed twice: registers are few
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i)
                store_shared_half(Unit(box, again + 32 * i, ctx.warp).place, static_cast<u16>(half[i][0]));
        }
    }
}

// Fills the staging buffer at `address` with the elements of C to be added to row `m` and column `n` of D, and those after it.
// The threads that share the buffer have to meet before they read these.
DEVICE void fill_addend(const Params& p, u32 address, int m, int n, int batch, TileContext ctx) {
#pragma unroll
    for (u32 i = 0; i < kNumStoreBoxes; ++i) {
        const int first = m + 64 / kNumStoreBoxes * i;
        const AddendRows c(p, kTransposedD ? n : first, kTransposedD ? first : n, batch);
        const u32 box = address + i * STORE_BOX_BYTES;
        const int begin = kTransposedD ? first : n;
        if (addend_aligned(p, 16, begin))
            fill_rows<16>(p, c, box, ctx);
        else if (kAddendBytes == 4 || addend_aligned(p, 4, begin))
            fill_rows<4>(p, c, box, ctx);
        else if constexpr (kAddendBytes == 2)
            fill_rows<2>(p, c, box, ctx);
    }
    copy_commit();
    copy_wait<0>();
}

// Asks for a warpgroup's part of C to be in L2 when its epilogue reads it.
DEVICE void prefetch_addend(const Params& p, const TileCoord& at) {
    if constexpr (kHasAddend) {
        if (kSplitK && p.schedule.splits > 1) return;  // only one of them adds C
        constexpr int LINE = 128 / kAddendBytes, TALL = 64 * kNumFragments;
        constexpr int ROWS = kTransposedD ? OUT_N : TALL, LINES = ((kTransposedD ? TALL : OUT_N) + LINE - 1) / LINE;
        const AddendRows c(p, kTransposedD ? at.column0 : at.row0, kTransposedD ? at.row0 : at.column0, at.batch);
#pragma unroll 1
        for (int i = threadIdx.x % 128; i < ROWS * LINES; i += 128) {
            const int row = i / LINES, column = i % LINES * LINE;
            if (row < c.rows && column < c.columns) prefetch(c.at + kAddendBytes * (row * p.c_ld + column));
        }
    }
}
