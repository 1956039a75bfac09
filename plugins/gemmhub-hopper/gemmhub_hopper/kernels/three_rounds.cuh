// Float32 to some 16 bits by bfloat16 tensor cores ("BF16x3"): an operand is the sum of two planes, high and low, which the
// pre-pass makes (prepass.cu), and three of the four products of planes are summed. That of the low ones is at most
// 2^-16 of the whole.
//
// The main loop is that of 16-bit operands. It goes through K three times, once for each product: a *round* has the blocks of
// one plane, and blocks of all rounds are counted on, so split-K and clusters divide them like others. The small products come
// first. Where an operand is infinite they may be NaN (infinity times a zero, or infinities of both signs); they are set to 0
// before the last round, whose sums are those of the high planes.
#pragma once
#include "config.cuh"
#include "params.cuh"

constexpr int kStoredPlanes = 2;  // of an operand in memory

static_assert(!kThreeRounds || !kRegistersA, "not implemented");

struct Round {
    int a_plane, b_plane;  // 0 high, 1 low
    int k_block;           // of the plane
};

// Block number `block` of all rounds.
DEVICE Round round_of(int block, int k) {
    const int blocks = (k + static_cast<int>(BLOCK_K) - 1) / static_cast<int>(BLOCK_K);
    if (block < blocks) return {1, 0, block};
    if (block < 2 * blocks) return {0, 1, block - blocks};
    return {0, 0, block - 2 * blocks};
}

// How many of `count` blocks from number `first` on belong to small products.
DEVICE int small_blocks(int first, int count, int k) {
    const int left = 2 * ((k + static_cast<int>(BLOCK_K) - 1) / static_cast<int>(BLOCK_K)) - first;
    return left < 0 ? 0 : left < count ? left : count;
}

DEVICE void clear_not_finite(Accumulators& acc) {
#pragma unroll
    for (u32 i = 0; i < kNumFragments; ++i)
#pragma unroll
        for (u32 j = 0; j < BLOCK_N / 2; ++j)
            if (!(fabsf(acc[i][j]) < infinity())) acc[i][j] = 0.0f;
}
