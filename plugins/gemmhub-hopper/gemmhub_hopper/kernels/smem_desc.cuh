// How a tile lies in shared memory, and how it is described to wgmma.
//
// Everything is in bytes, so that 16-bit and 32-bit elements are one case. A stage holds BLOCK_K_BYTES of K: 128 (64
// elements of 16 bits, 32 of 32 bits), or 64 of each plane of a split operand. TMA writes with a swizzle of 128 bytes (of a
// byte offset from a multiple of 1024, bits 4-6 are XORed with bits 7-9) or of 64 bytes (bits 4-5 with bits 7-8). A TMA box
// begins at a multiple of 1024, and wgmma applies the same XOR to the address bits themselves, so descriptors and offsets
// below are those of the unswizzled layout.
//
// K-major tile (contiguous along K), `rows` rows; swizzle of BLOCK_K_BYTES:
//     one box: row r at BLOCK_K_BYTES r, BLOCK_K_BYTES of K.
//     descriptor: stride 8 BLOCK_K_BYTES (8 rows on); the leading offset is not used. A K step of wgmma is 32 bytes on.
// MN-major tile (contiguous along M or N; 16-bit elements only), `rows` elements along M or N; swizzle of 128 bytes:
//     ceil(rows / 64) boxes of 64 elements (128 bytes) x BLOCK_K_BYTES / 2 of K: box s at FRAGMENT_BYTES s, in it k at 128 k.
//     descriptor: stride 1024 (8 k on), leading FRAGMENT_BYTES (64 elements along M or N on). A K step is 16 k: 2048 bytes.
#pragma once
#include "config.cuh"

constexpr u32 MN_ROW_BYTES = 128;                   // of a row of an MN-major box
constexpr u32 FRAGMENT_BYTES = 64 * BLOCK_K_BYTES;  // an MN-major box, and also 64 rows of a K-major tile

DEVICE constexpr u32 tile_bytes(bool mn_major, u32 rows) {
    return mn_major ? (rows + 63) / 64 * FRAGMENT_BYTES : rows * BLOCK_K_BYTES;
}

// From one K step of wgmma to the next.
DEVICE constexpr u32 step_bytes(bool mn_major) { return mn_major ? 16 * MN_ROW_BYTES : 32; }

// The wgmma descriptor of a tile that begins at `address`.
//     bits 0-13 address / 16 | 16-29 leading / 16 | 32-45 stride / 16 | 49-51 base offset 0 | 62-63 swizzle: 1 of 128
//     bytes, 2 of 64
DEVICE u64 make_smem_desc(bool mn_major, u32 address) {
    const u64 leading = mn_major ? FRAGMENT_BYTES / 16 : 1;
    const u64 stride = 8 * (mn_major ? MN_ROW_BYTES : BLOCK_K_BYTES) / 16;
    const u64 layout = mn_major || BLOCK_K_BYTES == 128 ? 1 : 2;
    return (layout << 62) | (stride << 32) | (leading << 16) | ((address & 0x3ffff) >> 4);
}

// Where TMA expects the byte at `offset` of a staging buffer whose rows have `width` bytes (16, 32, 64 or 128).
//     128: bits 4-6 ^= 7-9; 64: bits 4-5 ^= 7-8; 32: bit 4 ^= bit 7; 16: not swizzled
DEVICE u32 swizzled(u32 offset, u32 width) { return offset ^ ((offset >> 3) & ((width - 16) & 0x70)); }
