// A through registers (kRegistersA, "RS" wgmma): 32-bit elements are loaded from A's tile by ordinary loads, as fragments
// that wgmma takes instead of a descriptor. So tf32 may be contiguous along M, and float32 is split here instead of in a
// pre-pass. (Rows that TMA cannot take as they are: shifted_rows.cuh.)
//
// The fragment of 64 rows and a K step, for lane l of warp w; g = l / 4, t = l % 4, h = 0 or 1:
//     tf32 (8 of k)       register h: row 16 w + g + 8 h, k = t;            2 + h: the same row, 4 of k on
//     bfloat16 (16 of k)  register h: row 16 w + g + 8 h, k = 2 t, 2 t + 1; 2 + h: the same row, 8 of k on
//
// A tile has 32 elements of K. Contiguous along K: row r at 128 r. Along M: boxes of 32 rows, 4096 bytes, in each k at
// 128 k. Either way TMA swizzles by 128 bytes: the number of a 16-byte unit in its line is XORed with the line's number.
#pragma once
#include "params.cuh"
#include "smem_layout.cuh"
#include "split_planes.cuh"

constexpr u32 ROWS_BYTES = 64 * 128;  // of a fragment's 64 rows in A's tile

using Fragment = u32[4];

// Offset of a 32-bit element from where 64 rows of a tile begin.
DEVICE u32 element_offset(bool mn_major, u32 row, u32 k) {
    return swizzled(mn_major ? row / 32 * 4096 + k * 128 + row % 32 * 4 : row * 128 + k * 4, 128);
}

// Fragments of tf32 that is contiguous along M. The lanes of one k and of g < 4 read 4 of the 32 banks, and so do those of
// g >= 4; for k = 0, 1, 2, 3 these are other banks, but in the same half. So lanes of g >= 4 read k = t + 4 first, then t:
// without bank conflicts.
struct Tf32Loader {
    u32 offsets[4];  // of K step 0: rows g and g + 8 of the k that is read first; then of the other one
    bool later;      // whether t + 4 is read first

    DEVICE Tf32Loader(const Params&, u32 warp, u32 lane) : later(lane >= 16) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i)
            offsets[i] = element_offset(kMnMajorA, 16 * warp + lane / 4 + 8 * (i % 2), lane % 4 + 4 * (later != i / 2));
    }

    // Fragment number `number` of the tile at `tile`; what it has behind K is 0.
    DEVICE void load(Fragment& a, u32 tile, u32 number, u32 step, int) const {
        const u32 rows = tile + number * ROWS_BYTES;
        u32 x[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) x[i] = load_shared(rows + offsets[i] + step * 1024);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) a[i] = later ? x[i ^ 2] : x[i];
    }
};

// Fragments of float32, as the 16-bit ones that they are split into.
struct FragmentLoader {
    u32 offsets[2][2];  // of step 0, rows g and g + 8, k = 2 t and 2 t + 1

    DEVICE FragmentLoader(u32 warp, u32 lane) {
#pragma unroll
        for (u32 h = 0; h < 2; ++h)
#pragma unroll
            for (u32 e = 0; e < 2; ++e)
                offsets[h][e] = element_offset(kMnMajorA, 16 * warp + lane / 4 + 8 * h, 2 * (lane % 4) + e);
    }

    // Both elements of each register.
    DEVICE void load(float (&x)[4][2], u32 rows, u32 step) const {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 h = i % 2, k = 16 * step + 8 * (i / 2);
            if constexpr (kMnMajorA) {
#pragma unroll
                for (u32 e = 0; e < 2; ++e) x[i][e] = load_float(rows + offsets[h][e] + k * 128);
            } else {  // a bank conflict of two lanes each
                load_shared_pair((rows + offsets[h][0]) ^ (k * 4), x[i]);
            }
        }
    }
};

// Fragments of float32, split as split_planes() does but for what is infinite, NaN, or rounds to infinity: that makes sums
// that are not finite, and repair.cuh recomputes them.
struct SplitLoader {
    FragmentLoader elements;
    bool watched;   // whether marks of what is loaded are kept
    Extremes seen;  // by this thread
    Rescaling how;  // with kRescaled

    DEVICE SplitLoader(u32 warp, u32 lane, bool watched) : elements(warp, lane), watched(watched) {}

    DEVICE u32 marks() const { return seen.marks(how.large); }

    // All planes.
    DEVICE void load(Fragment (&a)[3], u32 rows, u32 step) {
        float x[4][2];
        elements.load(x, rows, step);
        if constexpr (kRescaled) {
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                float& element = x[i / 2][i % 2];
                const float scaled = element * how.scale;
                if (element != 0.0f && fabsf(scaled) < 0x1p-126f) seen.smallest = 0;  // scaling may have rounded
                element = scaled;
            }
        }
        if (watched) {
#pragma unroll
            for (u32 i = 0; i < 8; ++i) seen.note(x[i / 2][i % 2]);
        }
#pragma unroll
        for (u32 plane = 0; plane < 3; ++plane)
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                a[plane][i] = pack_bf16(x[i][0], x[i][1]);
                take_plane(a[plane][i], x[i][0], x[i][1]);
            }
    }
};
