// Words of device code that every kernel uses, for a host compiler: qualifiers, types, conversions.
#pragma once
#include <cmath>
#include <cstring>

#define GLOBAL_KERNEL extern "C"
#define DEVICE inline
#define __launch_bounds__(...)
#define __grid_constant__

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct Index {
    u32 x, y, z;
};
extern Index threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) Float4 {
    float x, y, z, w;
};

template <class T>
inline T read_as(const void* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}
inline float __uint_as_float(u32 bits) { return read_as<float>(&bits); }
inline u32 __float_as_uint(float value) { return read_as<u32>(&value); }
inline float infinity() { return INFINITY; }
inline float max_or_nan(float x, float y) { return x != x || y != y ? NAN : x > y ? x : y; }
inline int opaque(int value) { return value; }

inline float from_bf16(u16 bits) { return __uint_as_float(u32(bits) << 16); }
inline float from_f16(u16 bits) { return float(read_as<_Float16>(&bits)); }
inline u16 to_bf16(float value) {
    const u32 bits = __float_as_uint(value);
    return value != value ? 0x7fff : u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline u16 to_f16(float value) {
    const _Float16 half = static_cast<_Float16>(value);
    return read_as<u16>(&half);
}
inline u32 pack_bf16(float low, float high) { return to_bf16(low) | u32(to_bf16(high)) << 16; }
inline u32 pack_f16(float low, float high) { return to_f16(low) | u32(to_f16(high)) << 16; }
inline float exp2_fast(float x) { return std::exp2(x) < 0x1p-126f ? 0.0f : std::exp2(x); }  // NaN stays
inline float reciprocal_fast(float x) { return x > 0x1p126f ? 0.0f : 1.0f / x; }
