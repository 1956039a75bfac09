// Chunks of 16 bytes: their offsets in shared memory, and their copies from global memory.
#pragma once
#include "ptx.cuh"

// Rows of CHUNKS chunks of 16 bytes. Chunk `chunk` of row `row` is at column chunk ^ key(row): 8 consecutive rows
// have the same chunk in 8 different columns of 16 bytes, modulo the 128 bytes of all banks.
template <int CHUNKS>
struct Swizzled {
    static constexpr int SPAN = CHUNKS < 8 ? CHUNKS : 8;  // chunks that are permuted among each other
    static_assert((CHUNKS & (CHUNKS - 1)) == 0, "a power of two");
    DEVICE static constexpr u32 key(u32 row) { return row / (8 / SPAN) % SPAN; }
    DEVICE static constexpr u32 at(u32 row, u32 chunk) { return 16 * (row * CHUNKS + (chunk ^ key(row))); }
};

DEVICE int clamped(int value, int max) { return value < 0 ? 0 : value < max ? value : max; }

// Copies a chunk from global to shared memory: `valid` bytes of it, and zeros. `aligned`: the alignment of `from` in
// bytes, of which `valid` is a multiple, too, if not `partial`.
template <int aligned, bool partial>
DEVICE void copy_chunk(u32 to, const char* from, int valid) {
#pragma unroll
    for (int at = 0; at < 16; at += aligned) {
        const int left = valid - at;
        copy_async<aligned>(to + at, from + at, partial ? clamped(left, aligned) : left > 0 ? aligned : 0);
    }
}

// Loads the same to registers, where elements of type Element are aligned to their size only.
template <class Element>
DEVICE Word4 load_chunk(const char* from, int valid) {
    constexpr int SIZE = sizeof(Element);
    u32 word[4] = {};
#pragma unroll
    for (int i = 0; i < 16 / SIZE; ++i) {
        const u32 element = SIZE * i < valid ? load_global(reinterpret_cast<const Element*>(from) + i) : Element(0);
        word[SIZE * i / 4] |= element << 8 * (SIZE * i % 4);
    }
    return {word[0], word[1], word[2], word[3]};
}
