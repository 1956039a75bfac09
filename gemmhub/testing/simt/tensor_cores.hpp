// The numbers of tensor cores: 8-bit floats, and sums that are aligned and truncated.
#pragma once
#include <algorithm>

#include "device.hpp"

namespace simt {

// The value of an 8-bit float: e4m3 without infinities, or e5m2.
template <bool e4m3>
inline double float8_value(unsigned char x) {
    constexpr u32 digits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, exponents = (1u << (7 - digits)) - 1;
    const u32 exponent = x >> digits & exponents, digit = x & ((1u << digits) - 1);
    const double sign = x & 0x80 ? -1 : 1;
    if (e4m3 ? (x & 0x7f) == 0x7f : exponent == exponents && digit != 0) return std::nan("");
    if (!e4m3 && exponent == exponents) return sign * HUGE_VAL;
    const double value = exponent ? 1 + digit / double(1u << digits) : digit / double(1u << digits);
    return sign * std::ldexp(value, int(exponent ? exponent : 1) - int(bias));
}

// As tensor cores add: all numbers aligned to the largest, `bits_below` its leading bit kept, and what hangs over cut off;
// the sum truncated. Of 16 and 32 bits that is two bits more than float32 has; of 8-bit floats 14 bits are kept in all.
// `aligned`: a magnitude that counts for the alignment, too.
template <u32 bits_below, u32 count>
inline float added(const double (&x)[count], double aligned = 0) {
    constexpr u64 INFINITE = u64(0x7ff) << 52;
    u64 bits[count], largest = read_as<u64>(&aligned);
    memcpy(bits, x, sizeof(bits));
    for (u32 i = 0; i < count; ++i) largest = std::max(largest, bits[i] & ~(u64(1) << 63));
    if (largest == 0 || largest >= INFINITE) {
        double plain = 0;
        for (u32 i = 0; i < count; ++i) plain += x[i];
        return float(plain);
    }
    const u64 exponent = (largest >> 52) - bits_below;  // products of floats have normal doubles
    const u64 powers[] = {exponent << 52, (2046 - exponent) << 52};
    const double unit = read_as<double>(&powers[0]), inverse = read_as<double>(&powers[1]);
    long long sum = 0;
    for (u32 i = 0; i < count; ++i) sum += (long long)(x[i] * inverse);
    const double exact = double(sum) * unit;
    const float rounded = float(exact);
    if (!(std::fabs(rounded) > std::fabs(exact)) || std::isinf(rounded)) return rounded;
    return __uint_as_float(__float_as_uint(rounded) - 1);  // the next one towards zero
}

}  // namespace simt
