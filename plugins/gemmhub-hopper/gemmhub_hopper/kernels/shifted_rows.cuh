// A of 16-bit elements whose rows TMA cannot take as they are (kShiftedRows): contiguous along K, from a multiple of 16 bytes
// on, but rows are not a multiple of 16 bytes apart. Copying a large A first takes longer than reading it here.
//
// Every eighth row begins at a multiple of 16 bytes. So to TMA eight rows are one line, in which row r begins at element r ld
// (ld: from row to row). A box must begin at a multiple of 8 elements; it has 64 elements of K and 8 more, as the row begins up
// to 7 elements after the start of the box. A tile has a box for each r: line i of it is row 8 i + r of the tile.
//
//     box r at r BLOCK_M / 8 SHIFTED_ROW_BYTES; in it line i at SHIFTED_ROW_BYTES i. No swizzle is needed: the lines that a warp
//     reads at once are 36 words apart, in different banks
//
// wgmma cannot read that, so consumers load A to registers, and shift words by an element if r ld is odd. Elements past K belong
// to the next row and are made 0: B has zeros there, but 0 times NaN is NaN. Rows of wgmma's fragment are those of D in another
// order (fragment_row()), as lanes of a warp must read different lines: rows 8 g + 2 w + h of 64 for lane group g of warp w.
//
// If M is no multiple of 8, the last line has only the rows r < M % 8, and nothing may be read past the last of them. So boxes of
// these rows use a second map, with one line more; its lines end with row M % 8 - 1.
#pragma once
#include "fragments.cuh"

constexpr u32 LINE_ROWS = 8;
constexpr u32 SHIFTED_BOX_BYTES = BLOCK_M / LINE_ROWS * SHIFTED_ROW_BYTES;

struct ShiftedLoader {
    u32 offsets[2];  // of rows h = 0 and 1: the word of k = 2 t, t = lane % 4, but for the shift
    u32 shifts[2];   // bits
    u32 k;           // 2 t

    DEVICE ShiftedLoader(const Params& p, u32 warp, u32 lane) : k(2 * (lane % 4)) {
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            const u32 row = 2 * warp + h, offset = row * static_cast<u32>(p.a_m) % 8;  // from the start of the box
            offsets[h] = row * SHIFTED_BOX_BYTES + lane / 4 * SHIFTED_ROW_BYTES + offset / 2 * 4 + 2 * k;
            shifts[h] = offset % 2 * 16;
        }
    }

    // Fragment number `number` of the tile at `tile`. `left`: elements of K from this stage's first one on.
    DEVICE void load(Fragment& a, u32 tile, u32 number, u32 step, int left) const {
        const u32 rows = tile + number * (64 / LINE_ROWS) * SHIFTED_ROW_BYTES + 32 * step;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 from = rows + offsets[i % 2] + i / 2 * 16;
            a[i] = shift_pair(load_shared(from), load_shared(from + 4), shifts[i % 2]);
        }
        if (left >= static_cast<int>(BLOCK_K)) return;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const int left_here = left - static_cast<int>(k + 16 * step + 8 * (i / 2));
            a[i] &= left_here >= 2 ? 0xffffffff : left_here == 1 ? 0xffff : 0;
        }
    }
};
