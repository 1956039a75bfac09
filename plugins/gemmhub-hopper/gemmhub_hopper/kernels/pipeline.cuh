// The ring of stages between the producer and the consumers.
//
// Each stage has two barriers:
//   full[s]   1 arrival (the producer of this CTA, with the bytes of both tiles); completes when those bytes are written,
//             whichever CTA of the cluster loads them.
//   empty[s]  4 arrivals (one of each warp) of each consumer warpgroup that reads the stage, of each CTA of the cluster
//             that multicasts: TMA of any of them writes to this CTA's stage, and may do so when every CTA has read its
//             copy.
// Every pass over the ring uses each stage once; the parity of passes is 0, 1, 0, ... Consumers wait for full[s] of their
// pass. The producer waits for empty[s] of the pass before: parity ^ 1, which a fresh barrier has completed.
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

    // Past stages that another warpgroup reads.
    DEVICE void skip(u32 count) {
        const u32 end = stage + count;
        stage = end % stages;
        parity ^= end / stages & 1;
    }
};
