// A float32 number as the sum of three bfloat16 numbers, its planes: 8 significant bits each, 24 in all.
//
//     plane 0 = x rounded, plane 1 = what is left of it rounded, plane 2 = what is left then (all differences are exact)
//
// Where rounding x would overflow it is truncated. Of an infinity or NaN, plane 0 is not finite either and the others are
// 0: the sums that it takes part in are not finite, and repair.cuh recomputes them. Bits below 2^-133, the smallest of
// bfloat16, are lost: that is so for |x| < 2^-109. Such an x is *lossy*; it matters beside a *large* factor only, and
// where those meet (see repair.cuh) elements are recomputed too.
#pragma once
#include "ptx.cuh"

constexpr u32 LOSSY = 1, LARGE = 2;  // marks
constexpr u32 REJECTED = 4;          // of an operand, by f16_prepass.cu or f16_registers.cuh: bfloat16 planes multiply it
constexpr u32 NOT_FINITE = 8;        // by the pre-pass: infinities, NaNs; not LARGE, as sums show where they are
// By f16_prepass.cu, of elements below float16's normal numbers: of an operand SMALL; of a group as many bits from SMALL_BIT
// on as the smallest has powers of two below. Where these are more than LEAST_SMALL the group is rejected.
constexpr u32 SMALL = 16, SMALL_BIT = 8, LEAST_SMALL = 32 - SMALL_BIT;
DEVICE u32 small_bits(u32 small) {
    return small > LEAST_SMALL ? REJECTED : ((1u << SMALL_BIT) << small) - (1u << SMALL_BIT);
}
// By f16_prepass.cu, once for each group of rows: REJECTED_WORD has counted it.
constexpr u32 COUNTED = 32;
constexpr float LARGE_FROM = 256.0f;
// Marks are kept for groups of rows of A (columns of B): word 0 has those of all groups, 1.. those of group g at
// 1 + g % (MARKS - 4). f16_prepass.cu and f16_registers.cuh write the last two: the exponent, biased by 127, of the largest
// finite element that they looked at, 0 if none is known; and of the smallest scaled one that is not 0, how far its exponent is
// below that of float16's normal numbers. REJECTED_WORD counts the groups' words that are marked as rejected; f16_prepass.cu
// also counts those whose elements are so small that they may be rejected beside groups of the other operand.
constexpr u32 MARKS = 2048, LARGEST_WORD = MARKS - 1, SMALL_WORD = MARKS - 2, REJECTED_WORD = MARKS - 3;
constexpr int GROUP_ROWS = 128;

DEVICE u32 group_word(u32 group) { return 1 + group % (MARKS - 4); }

DEVICE float power_of_two(int exponent) { return __uint_as_float(static_cast<u32>(exponent + 127) << 23); }

DEVICE void forget_extremes(u32* marks) { marks[LARGEST_WORD] = marks[SMALL_WORD] = 0; }

// Whether the split of an operand into float16 planes was rejected, whatever the other one. `limit`: of what is small in both.
DEVICE bool rejected(const u32* marks, int limit) {
    return (load_word(marks) & REJECTED) || static_cast<int>(load_word(marks + SMALL_WORD)) > limit;
}

// Whether the split of either operand into float16 planes was rejected. `limit`: of what is small in both operands together.
DEVICE bool rejected(const u32* a_marks, const u32* b_marks, int limit) {
    if ((load_word(a_marks) | load_word(b_marks)) & REJECTED) return true;
    return static_cast<int>(load_word(a_marks + SMALL_WORD) + load_word(b_marks + SMALL_WORD)) > limit;
}

// Whether the split of a group of rows or of one of columns into float16 planes was rejected, by their words.
DEVICE bool rejected_groups(u32 a, u32 b, int limit) {
    return ((a | b) & REJECTED) || static_cast<int>(__popc(a >> SMALL_BIT) + __popc(b >> SMALL_BIT)) > limit;
}

constexpr int MANY = 8;

// Whether at most one of MANY cells (rejected_tiles.cuh) is rejected, by the counts. `groups`: the words of groups of A and of B.
DEVICE bool few_rejected(const u32* a_marks, const u32* b_marks, const int (&groups)[2]) {
    const u64 a = load_word(a_marks + REJECTED_WORD), b = load_word(b_marks + REJECTED_WORD);
    return MANY * (a * groups[1] + b * groups[0]) <= static_cast<u64>(groups[0]) * groups[1];
}

// An operand that was rejected is scaled before it is split, by this power of two: its largest elements come near 2^40, so
// that hardly any is lossy. A packed operand (`kept`) was split as it is. The scales of both are at least 1 together: products
// that are not small must not underflow; those that overflow then are recomputed.
DEVICE int split_exponent(const u32* marks, const u32* other_marks, bool kept, bool other_kept) {
    int exponents[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (i == 0 ? kept : other_kept) continue;
        const int largest = static_cast<int>(load_word((i == 0 ? marks : other_marks) + LARGEST_WORD));
        if (largest == 0) return 0;  // unknown: A is split in registers, and B was rejected before, or A begins with zeros
        const int exponent = 40 + 127 - largest;
        exponents[i] = exponent > 120 ? 120 : exponent;
    }
    if (exponents[0] + exponents[1] >= 0 || exponents[0] >= 0) return exponents[0];
    return exponents[1] < 0 ? 0 : -exponents[1];
}

// How an operand whose split into float16 planes was rejected is split into bfloat16 planes.
struct Rescaling {
    float scale = 1.0f, large = LARGE_FROM;

    DEVICE Rescaling() {}

    // By the marks of this operand and the other one. `kept`: it is packed.
    DEVICE Rescaling(const u32* marks, const u32* other_marks, bool kept, bool other_kept) {
        const int own = split_exponent(marks, other_marks, kept, other_kept);
        const int other = split_exponent(other_marks, marks, other_kept, kept);
        scale = power_of_two(own);
        const int from = 8 + other + own;  // of a scaled element
        large = from > 127 ? infinity() : power_of_two(from);
    }
};

// The marks of many elements at less cost; it may mark an element as lossy that is not.
struct Extremes {
    u32 smallest = 0xffffffff, largest = 0;  // twice the bits of magnitudes, less 1 in smallest: 0 is none

    DEVICE void note(float x) {
        const u32 twice = __float_as_uint(x) << 1;
        if (twice - 1 < smallest) smallest = twice - 1;
        if (twice > largest) largest = twice;
    }

    // `large`: as of split_planes().
    DEVICE u32 marks(float large = LARGE_FROM) const {
        constexpr u32 FROM_109 = 2 * (127 - 109 << 23);
        return (smallest < FROM_109 - 1 ? LOSSY : 0) | (largest >= 2 * __float_as_uint(large) ? LARGE : 0);
    }
};

// Subtracts this plane from two numbers.
DEVICE void take_plane(u32 plane, float& low, float& high) {
    low -= from_bf16(static_cast<u16>(plane));
    high -= from_bf16(static_cast<u16>(plane >> 16));
}

// `large`: from where on an element, before it was scaled, is large: a lossy one of the other operand, wrong by 2^-134
// divided by its scale, matters beside it.
DEVICE void split_planes(float x, u16 (&plane)[3], u32& marks, float large = LARGE_FROM) {
    const u32 bits = __float_as_uint(x);
    const bool finite = (bits & 0x7f800000) != 0x7f800000;
    plane[0] = static_cast<u16>(pack_bf16(x, 0.0f));
    // Not of a NaN, whose upper bits may be those of an infinity.
    if (finite && (plane[0] & 0x7f80) == 0x7f80) plane[0] = static_cast<u16>(bits >> 16);
    float rest = finite ? x - from_bf16(plane[0]) : 0.0f;
    plane[1] = static_cast<u16>(pack_bf16(rest, 0.0f));
    rest -= from_bf16(plane[1]);
    plane[2] = static_cast<u16>(pack_bf16(rest, 0.0f));
    rest -= from_bf16(plane[2]);
    marks |= (rest != 0.0f ? LOSSY : 0) | (!finite ? NOT_FINITE : fabsf(x) >= large ? LARGE : 0);
}
