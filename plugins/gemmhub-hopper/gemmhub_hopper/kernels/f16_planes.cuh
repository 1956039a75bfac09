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
// finite or so large that a sum of products could overflow.
#pragma once
#include "split_planes.cuh"

constexpr int SCALE_GROUP_K = 128;
constexpr float CROSS_SCALE = 0x1p-12f;  // of plane 1
// Exponents of the largest element of a group: larger ones are rejected, smaller ones are taken for the least. So scales
// are in [2^-63, 2^36], products of two are normal numbers, and no sum of 2^24 products overflows.
constexpr int LARGEST_EXPONENT = 50, LEAST_EXPONENT = -49;

// The exponent of the scale of a group from the bits of its largest magnitude: x 2^-exponent is what is split.
DEVICE int scale_exponent(u32 largest) {
    const int exponent = static_cast<int>(largest >> 23) - 127;
    return (exponent < LEAST_EXPONENT ? LEAST_EXPONENT : exponent) - 14;
}

struct F16Planes {
    u16 plane[2];
};

// Splits a scaled element; `accurate` becomes false where the planes do not hold it well enough.
DEVICE F16Planes split_f16(float x, float residual, float share, bool& accurate) {
    F16Planes planes;
    planes.plane[0] = static_cast<u16>(pack_f16(x, 0.0f));
    const float rest = (x - from_f16(planes.plane[0])) * (1.0f / CROSS_SCALE);
    planes.plane[1] = static_cast<u16>(pack_f16(rest, 0.0f));
    const float lost = fabsf(rest - from_f16(planes.plane[1])), size = fabsf(x) * (1.0f / CROSS_SCALE);
    accurate = accurate && lost <= residual * size && fabsf(rest) <= share * size;
    return planes;
}
