// A of 16-bit elements whose rows TMA cannot take as they are (kShiftedRows): contiguous along K, from a multiple of 16 bytes
// on, but rows are not a multiple of 16 bytes apart. A copy with such rows takes longer than reading A.
//
// Every eighth row begins at a multiple of 16 bytes. So to TMA eight rows are one line, in which row r begins at element r ld
// (ld: from row to row). A box begins at a multiple of 8 elements, and has 64 elements of K and 8 more, as the row begins up to
// 7 elements behind. A tile has a box for each r: line i of it is row 8 i + r of the tile.
//
//     box r at r BLOCK_M / 8 SHIFTED_ROW_BYTES; in it line i at SHIFTED_ROW_BYTES i, which no swizzle need protect from bank
//     conflicts: 36 words apart, the lines that a warp reads at once are in different banks
//
// wgmma cannot read that, so consumers load A to registers, where words are shifted by an element if r ld is odd. What a row
// has behind K is the next row's, and must be made 0: B has zeros there, but 0 times NaN is NaN. Rows of wgmma's fragment are
// those of D in another order (fragment_row()), as lanes of a warp must read different lines: rows 8 g + 2 w + h of 64 for lane
// group g of warp w.
//
// If M is no multiple of 8, the last line has rows r < M % 8 only, and nothing may be read behind the last of them. So boxes of
// these rows have a map of their own, whose lines are shorter but one more.
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
            const u32 row = 2 * warp + h, behind = row * static_cast<u32>(p.a_m) % 8;
            offsets[h] = row * SHIFTED_BOX_BYTES + lane / 4 * SHIFTED_ROW_BYTES + behind / 2 * 4 + 2 * k;
            shifts[h] = behind % 2 * 16;
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
            const int behind = left - static_cast<int>(k + 16 * step + 8 * (i / 2));
            a[i] &= behind >= 2 ? 0xffffffff : behind == 1 ? 0xffff : 0;
        }
    }
};
