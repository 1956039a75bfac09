// In place of the generated header: wgmma as functions that read shared memory by its descriptors, and registers, late.
#pragma once
#include "ptx.cuh"

inline void wgmma(float (&d)[TILE_N / 2], u64 a, u64 b, int accumulate) {
    emulator::multiply(d, TILE_N, a, b, A_MN, B_READ_MN, INPUT, accumulate);
}
inline void wgmma(float (&d)[TILE_N / 2], const u32 (&a)[4], u64 b, int accumulate) {
    emulator::multiply(d, TILE_N, a, b, B_READ_MN, INPUT, accumulate);
}
