// Whose turn it is, with kPingpong. Of its block's pieces consumer 0 takes number 0, 2, 4, ... and consumer 1 those
// between. So the epilogue of one runs under the main loop of the other.
//
//   turn[w]   4 arrivals, one from each warp of the other consumer, when it has issued the last wgmma of a piece; ends
//             the wait of consumer w, who then begins with the next piece.
//
// Turns do more than keep order. full[s] tells a pass over the ring from the next one by its parity, so whoever waits
// for a pass must know that the one before is over. In its turn a consumer does: the other one has waited for all
// stages of the piece before, and only then given up its turn.
#pragma once
#include "pipeline.cuh"
#include "smem_layout.cuh"

struct PingpongOrder {
    u32 base, warpgroup;
    u32 passed = 0;  // pieces of the block

    DEVICE PingpongOrder(u32 base, u32 warpgroup) : base(base), warpgroup(warpgroup) {}

    // Whether the block's next piece is this consumer's.
    DEVICE bool mine() { return !kPingpong || passed++ % 2 == warpgroup; }

    // The parities of consumer 0's waits are 1, 0, 1, ...: the first one ends at once, on a fresh barrier. Those of
    // consumer 1's are 0, 1, 0, ...
    DEVICE void wait() {
        if constexpr (kPingpong) barrier_wait(base + SMEM_ORDER_OFFSET + 8 * warpgroup, passed / 2 % 2 ^ 1);
    }

    DEVICE void arrive(u32 lane) {
        if (kPingpong && lane == 0) barrier_arrive(base + SMEM_ORDER_OFFSET + 8 * (warpgroup ^ 1));
    }
};
