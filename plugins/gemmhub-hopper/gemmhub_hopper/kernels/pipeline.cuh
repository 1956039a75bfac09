// The ring of stages between the producer and the consumers.
//
// Two barriers a stage:
//   full[s]   1 arrival (this block's producer, with the bytes of both tiles); ends when those bytes are written,
//             whichever block of the cluster asked for them.
//   empty[s]  4 arrivals (one a warp) from each consumer warpgroup that reads the stage, of each block of the cluster:
//             TMA of any of them writes to this block's stage, and may do so when every block has read its copy.
// A stage is used in turn by every pass over the ring; the parity of a pass is 0, 1, 0, ... The consumers' wait for
// full[s] of their pass. The producer waits for empty[s] of the pass before: parity ^ 1, which a fresh barrier has.
#pragma once
#include "ptx.cuh"

template <u32 stages>
struct PipelineState {
    u32 stage = 0;
    u32 parity = 0;

    DEVICE void advance() {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }

    // Past stages that somebody else reads.
    DEVICE void skip(u32 count) {
        const u32 end = stage + count;
        stage = end % stages;
        parity ^= end / stages & 1;
    }
};
