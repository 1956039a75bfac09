// In place of the generated header: wgmma as functions that read shared memory by its descriptors, and registers, late.
#pragma once
#include "config.cuh"

constexpr int kMultiplied = kInput == F16X3_INPUT ? F16_INPUT : kInput;

inline void wgmma(Sum (&d)[BLOCK_N / 2], u64 a, u64 b, int accumulate) {
    emulator::multiply(d, BLOCK_N, a, b, kMnMajorA, kWgmmaMnMajorB, kMultiplied, accumulate);
}
inline void wgmma(Sum (&d)[BLOCK_N / 2], const u32 (&a)[4], u64 b, int accumulate) {
    emulator::multiply(d, BLOCK_N, a, b, kWgmmaMnMajorB, kMultiplied, accumulate);
}
