// In place of the generated header: wgmma as a function that reads shared memory by its descriptors, late.
#pragma once
#include "ptx.cuh"

inline void wgmma(float (&d)[TILE_N / 2], u64 a, u64 b, int accumulate) {
    emulator::multiply(d, TILE_N, a, b, A_MN, B_MN, INPUT, accumulate);
}
