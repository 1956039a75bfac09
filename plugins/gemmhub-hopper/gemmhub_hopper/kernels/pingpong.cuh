// The order of two consumers with kPingpong: each has tiles of its own. Of its CTA's work tiles consumer 0 computes number
// 0, 2, 4, ... and consumer 1 those between, so that the epilogue of one runs under the main loop of the other.
//
//   order[w]  4 arrivals, one of each warp of the other consumer, when it has issued the last wgmma of a work tile; ends
//             the wait of consumer w, which then begins with its next work tile.
//
// These barriers do more than keep order. full[s] distinguishes a pass over the ring from the next one by its parity only,
// so whoever waits for a pass must know that the one before has completed. A consumer in its turn knows that: the other one
// has waited for all stages of the work tile before, and only then arrived.
#pragma once
#include "tile_context.cuh"

// By the thread that initialises barriers.
DEVICE void init_pingpong_order(u32 smem) {
    for (u32 w = 0; kPingpong && w < kNumConsumers; ++w) barrier_init(smem + SMEM_ORDER_OFFSET + 8 * w, 4);
}

struct PingpongOrder {
    u32 smem, warpgroup;
    u32 passed = 0;  // work tiles of the CTA

    DEVICE explicit PingpongOrder(TileContext ctx) : smem(ctx.smem), warpgroup(ctx.warpgroup) {}

    // Whether the CTA's next work tile is this consumer's.
    DEVICE bool next_is_mine() { return !kPingpong || passed++ % 2 == warpgroup; }

    // The parities of consumer 0's waits are 1, 0, 1, ...: the first wait ends at once, on a fresh barrier. Those of
    // consumer 1's are 0, 1, 0, ...
    DEVICE void wait() {
        if constexpr (kPingpong) barrier_wait(smem + SMEM_ORDER_OFFSET + 8 * warpgroup, passed / 2 % 2 ^ 1);
    }

    DEVICE void arrive(u32 lane) {
        if (kPingpong && lane == 0) barrier_arrive(smem + SMEM_ORDER_OFFSET + 8 * (warpgroup ^ 1));
    }
};
