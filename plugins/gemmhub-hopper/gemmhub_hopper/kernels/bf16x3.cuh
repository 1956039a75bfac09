// Float32 to some 16 bits by bfloat16 tensor cores ("BF16x3"): an operand is the sum of two planes, high and low, which the
// pre-pass makes (prepass.cu), and three of the four products of planes are summed. That of the low ones is at most
// 2^-16 of the sum.
//
// The main loop is that of 16-bit operands. It goes through the K of a work tile three times, once for each product of planes:
// low * high and high * low, the small products, then high * high. Where an operand is infinite the small sums may be NaN
// (infinity times a zero, or infinities of both signs), though the result is infinite. So small sums that are not finite are
// cleared before the last product. Its sums are not finite then, or the small sums overflowed: the result is NaN in that case.
#pragma once
#include "params.cuh"
#include "tile_scheduler.cuh"

constexpr int kNumProducts = kBf16x3 ? 3 : 1;
constexpr int kStoredPlanes = 2;  // of an operand in memory
static_assert(!kBf16x3 || !kRegistersA, "not implemented");

struct PlaneProduct {
    int a_plane, b_plane;  // 0 high, 1 low
    int k_block;
};

// Block number `block` of all products of planes of a work tile.
DEVICE PlaneProduct plane_product_of(int block, const WorkTile& work) {
    if (!kBf16x3) return {0, 0, work.first_k_block + block};
    if (block < work.k_blocks) return {1, 0, work.first_k_block + block};
    block -= work.k_blocks;
    if (block < work.k_blocks) return {0, 1, work.first_k_block + block};
    return {0, 0, work.first_k_block + block - work.k_blocks};
}

// The small sums of a thread that were cleared: a bit each.
struct Cleared {
    static constexpr u32 COUNT = kNumFragments * BLOCK_N / 2;
    u32 bits[(COUNT + 31) / 32] = {};

    DEVICE void clear(Accumulators& acc) {
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            Sum& sum = acc[i / (BLOCK_N / 2)][i % (BLOCK_N / 2)];
            if (fabsf(sum) < infinity()) continue;
            sum = 0.0f;
            bits[i / 32] |= 1u << i % 32;
        }
    }

    // After the last product: NaN where a small sum that was not finite was cleared, and this product is finite.
    DEVICE void restore_nonfinite(Accumulators& acc) const {
        u32 any = 0;
#pragma unroll
        for (u32 i = 0; i < (COUNT + 31) / 32; ++i) any |= bits[i];
        if (any == 0) return;
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            Sum& sum = acc[i / (BLOCK_N / 2)][i % (BLOCK_N / 2)];
            if ((bits[i / 32] >> i % 32 & 1) && fabsf(sum) < infinity()) sum = infinity() - infinity();
        }
    }
};
