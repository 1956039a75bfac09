// From floating-point numbers to 8-bit codes and the float32 scales that multiply them, bit for bit as
// gemmhub/quantization.py computes them with NumPy. The code of NaN is 0x7f in both float8 formats.
//
//     INPUT     x: 0 bfloat16, 1 float16, 2 float32
//     TARGET    q: 0 float8_e4m3fn, 1 float8_e5m2, 2 int8
#pragma once
#include "ptx.cuh"

constexpr int SIZE = INPUT == 2 ? 4 : 2;  // bytes of an element of x
constexpr int PER = 16 / SIZE;            // elements of a run, 16 bytes
constexpr float LARGEST = TARGET == 0 ? 448.0f : TARGET == 1 ? 57344.0f : 127.0f;

// Adjacent elements of a row of x, as they are in memory; zeros beyond its end.
struct Run {
    u32 word[4];
};

DEVICE float element(const Run& run, int i) {
    if constexpr (INPUT == 2) return __uint_as_float(run.word[i]);
    const u32 word = run.word[i * SIZE / 4];
    if constexpr (INPUT == 0) return __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
    return from_f16(static_cast<u16>(i % 2 ? word >> 16 : word));
}

// The first `valid` elements of a run. `wide`: x is aligned to 16 bytes wherever a run begins.
DEVICE Run load_run(const void* x, long long at, int valid, bool wide) {
    Run run = {};
    if (wide && valid >= PER) {
        const Word4 all = load_global(reinterpret_cast<const Word4*>(static_cast<const char*>(x) + at * SIZE));
        run = {{all.x, all.y, all.z, all.w}};
    } else {
#pragma unroll
        for (int i = 0; i < PER; ++i) {
            if (i >= valid) continue;
            if constexpr (SIZE == 4)
                run.word[i] = load_global(static_cast<const u32*>(x) + at + i);
            else
                run.word[i / 2] |= static_cast<u32>(load_global(static_cast<const u16*>(x) + at + i)) << 16 * (i % 2);
        }
    }
    return run;
}

// --- scales ---------------------------------------------------------------------------------------------------

// Magnitudes are compared as bits, in whose order NaN is the largest.
DEVICE u32 larger(u32 x, u32 y) { return x > y ? x : y; }

// The magnitude that counts for the scale: infinities do not; NaN only where the codes have none.
DEVICE u32 magnitude(float x) {
    const u32 bits = __float_as_uint(x) & 0x7fffffffu;
    if constexpr (TARGET == 2) return bits == 0x7f800000u ? 0 : bits;
    return bits < 0x7f800000u ? bits : 0;
}

DEVICE u32 magnitude(const Run& run) {
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < PER; ++i) largest = larger(largest, magnitude(element(run, i)));
    return largest;
}

DEVICE float scale_of(u32 largest) {
    const float scale = __uint_as_float(largest) / LARGEST;
    return largest == 0 ? 1.0f : scale < 0x1p-126f ? 0x1p-126f : scale;
}

// --- codes ----------------------------------------------------------------------------------------------------

// Division by a scale, correctly rounded, for many elements. A quotient is the product with the reciprocal in two terms,
// corrected once by its remainder (P. Markstein, "Computation of elementary functions on the IBM RISC System/6000
// processor", 1990). That is exact where nothing underflows: elements and scale are first multiplied by a power of 2.
// What still underflows rounds to a code of zero.
struct Divisor {
    float power;  // of 2; infinite or 0, with the scale 1, for scales that are 0 or infinite
    float scale, inverse, rest;
    float limit;  // larger magnitudes saturate

    DEVICE explicit Divisor(float given) {
        const float size = __uint_as_float(__float_as_uint(given) & 0x7fffffffu);
        power = 1.0f, scale = size;
        if (size < 0x1p-80f) power = 0x1p96f, scale = size * 0x1p96f;
        if (size > 0x1p80f) power = 0x1p-64f, scale = size * 0x1p-64f;
        if (size == 0.0f) power = infinity(), scale = 1.0f;
        if (size == infinity()) power = 0.0f, scale = 1.0f;
        power = __uint_as_float(__float_as_uint(power) | (__float_as_uint(given) & 0x80000000u));
        inverse = 1.0f / scale;
        rest = fmaf(-scale, inverse, 1.0f) * inverse;
        limit = LARGEST * scale;
    }

    DEVICE Divisor() {}

    // x / scale within the range of the codes, or NaN; a zero has the sign of the quotient.
    DEVICE float operator()(float x) const {
        const float y = x * power;
        const float z = -max_or_nan(-max_or_nan(y, -limit), -limit);
        const float first = fmaf(z, inverse, z * rest);
        const float quotient = fmaf(fmaf(-first, scale, z), inverse, first);
        if constexpr (TARGET == 2) return quotient;
        return __uint_as_float((__float_as_uint(quotient) & 0x7fffffffu) | (__float_as_uint(z) & 0x80000000u));
    }
};

// The code of a number within the range; for cards without an instruction, which begin with capability 8.9.
DEVICE u32 float8_code(float x) {
    constexpr int MANTISSA = TARGET == 0 ? 3 : 2, BIAS = TARGET == 0 ? 7 : 15, DROPPED = 23 - MANTISSA;
    const u32 bits = __float_as_uint(x), size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return 0x7f;
    // In the binade of this number the last bit of a float is the smallest subnormal number of the codes.
    const float binade = __uint_as_float(static_cast<u32>(127 + 23 + 1 - BIAS - MANTISSA) << 23);
    const u32 subnormal = __float_as_uint(__uint_as_float(size) + binade) - __float_as_uint(binade);
    const u32 even = size + (1u << (DROPPED - 1)) - 1 + (size >> DROPPED & 1);
    const u32 normal = (even >> DROPPED) - ((127 - BIAS) << MANTISSA);
    return (size < static_cast<u32>(127 + 1 - BIAS) << 23 ? subnormal : normal) | (bits >> 24 & 0x80);
}

// The code of a number within the range, as an integer; 0 for NaN. The sum's last bits are the rounded integer.
DEVICE u32 int8_code(float x) { return x != x ? 0 : __float_as_uint(x + 0x1.8p23f) & 0xff; }

DEVICE u32 pair_of_codes(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    if constexpr (TARGET != 2) {
        u16 both;
        if constexpr (TARGET == 0)
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
        else
            asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(high), "f"(low));
        return both;
    }
#endif
    if constexpr (TARGET == 2) return int8_code(low) | int8_code(high) << 8;
    return float8_code(low) | float8_code(high) << 8;
}

// The codes of a run, in the order of memory.
struct Codes {
    u32 word[PER / 4];
};

// `divisor(i)` is that of element i.
template <class DivisorOf>
DEVICE Codes codes_of(const Run& run, DivisorOf divisor) {
    Codes codes;
#pragma unroll
    for (int i = 0; i < PER; i += 4)
        codes.word[i / 4] = pair_of_codes(divisor(i)(element(run, i)), divisor(i + 1)(element(run, i + 1))) |
                            pair_of_codes(divisor(i + 2)(element(run, i + 2)), divisor(i + 3)(element(run, i + 3))) << 16;
    return codes;
}

// Stores the first `valid` codes of a run. `wide`: q is aligned to the codes of a run.
DEVICE void store_codes(void* q, long long at, int valid, bool wide, const Codes& codes) {
    char* to = static_cast<char*>(q) + at;
    if (wide && valid >= PER) {
        if constexpr (PER == 8)
            store_global(reinterpret_cast<Word2*>(to), {codes.word[0], codes.word[PER / 4 - 1]});
        else
            store_global(reinterpret_cast<u32*>(to), codes.word[0]);
    } else {
#pragma unroll
        for (int i = 0; i < PER; ++i)
            if (i < valid) store_global(to + i, static_cast<char>(codes.word[i / 4] >> 8 * (i % 4)));
    }
}
