// A float32 number as the sum of two float16 numbers, its planes, after scaling by a power of two: 11 significant bits each.
//
// SCALE_GROUP_K consecutive elements along K of a row of A (column of B) share a scale, so that the largest is in
// [2^14, 2^15). Of a scaled element x
//
//     plane 0 = x rounded, plane 1 = 2^12 (x - plane 0) rounded
//
// (the difference is exact). For |x| >= 2^-14 the planes hold x to within 2^-23 |x|, and plane 1 is at most 2^-11 |x| in
// x's units; below, plane 0 is a subnormal number, and what they hold is within 2^-37. The product of both second planes is
// left out. So a group is *rejected* where an element is held less accurately than the error bound has room for: more than
// `residual` |x| is lost, or plane 1 is more than `share` of x. docs/float32.md derives both. Also rejected is what is not
// finite or so large that a sum of products could overflow; and operands whose elements are too far below float16's normal
// numbers, as tensor cores align a product by the exponent of these, not by its own.
#pragma once
#include "split_planes.cuh"

constexpr int SCALE_GROUP_K = 128;
constexpr float CROSS_SCALE = 0x1p-12f;  // of plane 1
// Exponents of the largest element of a group: larger ones are rejected, smaller ones are taken for the smallest. So scales
// are in [2^-63, 2^36], products of two are normal numbers, and no sum of 2^24 products overflows.
constexpr int LARGEST_EXPONENT = 50, LEAST_EXPONENT = -49;

// The exponent of the scale of a group from the bits of its largest magnitude: x 2^-exponent is what is split.
DEVICE int scale_exponent(u32 largest) {
    const int exponent = static_cast<int>(largest >> 23) - 127;
    return (exponent < LEAST_EXPONENT ? LEAST_EXPONENT : exponent) - 14;
}

// The largest of `count` neighbouring lanes.
template <u32 count>
DEVICE u32 largest_of_lanes(u32 largest) {
#pragma unroll
    for (u32 lanes = 1; lanes < count; lanes *= 2) {
        const u32 other = __float_as_uint(shuffle_xor(__uint_as_float(largest), lanes));
        largest = other > largest ? other : largest;
    }
    return largest;
}

// Both planes of two elements, the first one in the lower halves.
struct F16Pair {
    u32 plane[2];
};

// The worst that a thread has split.
struct SplitError {
    float excess = 0.0f;         // over what planes may lose
    float smallest = 0x1p-14f;   // scaled element that is not 0, where it is below float16's normal numbers

    DEVICE void note(float x, float scaled) {
        if (x != 0.0f) smallest = fminf(smallest, fabsf(scaled));
    }

    // How far its exponent is below that of normal numbers.
    DEVICE u32 small() const { return 127 - 14 - (__float_as_uint(smallest) >> 23); }
};

// Splits two scaled elements.
DEVICE F16Pair split_f16(const float (&x)[2], float residual, float share, SplitError& error) {
    F16Pair pair;
    pair.plane[0] = pack_f16(x[0], x[1]);
    float rest[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
        rest[i] = (x[i] - from_f16(static_cast<u16>(pair.plane[0] >> 16 * i))) * (1.0f / CROSS_SCALE);
    pair.plane[1] = pack_f16(rest[0], rest[1]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        // Each fmaf rounds once, which does not change the sign.
        const float lost = fabsf(rest[i] - from_f16(static_cast<u16>(pair.plane[1] >> 16 * i)));
        const float size = fabsf(x[i]) * -(1.0f / CROSS_SCALE);
        error.excess = fmaxf(error.excess, fmaxf(fmaf(residual, size, lost), fmaf(share, size, fabsf(rest[i]))));
    }
    return pair;
}
