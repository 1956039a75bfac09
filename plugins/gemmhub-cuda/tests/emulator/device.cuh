// In place of gemmhub_cuda/kernels/device.cuh: the same functions for a host compiler.
#pragma once
#include "machine.hpp"

#define GLOBAL_KERNEL extern "C"
#define DEVICE inline
#define __launch_bounds__(...)
#define __grid_constant__

inline float infinity() { return INFINITY; }

inline float __uint_as_float(u32 bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline u32 __float_as_uint(float value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    return bits;
}

inline float from_bf16(u16 bits) { return __uint_as_float(u32(bits) << 16); }
inline float from_f16(u16 bits) {
    _Float16 half;
    memcpy(&half, &bits, 2);
    return float(half);
}
inline u16 to_bf16(float value) {
    const u32 bits = __float_as_uint(value);
    if (value != value) return 0x7fff;
    return u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline u16 to_f16(float value) {
    const _Float16 half = static_cast<_Float16>(value);
    u16 bits;
    memcpy(&bits, &half, 2);
    return bits;
}
inline u32 pack_bf16(float low, float high) { return to_bf16(low) | u32(to_bf16(high)) << 16; }
inline u32 pack_f16(float low, float high) { return to_f16(low) | u32(to_f16(high)) << 16; }
inline float exp2_fast(float x) { return std::exp2(x); }
inline float divide_fast(float x, float y) { return std::fabs(y) > 8.5e37f && std::isfinite(x) ? x * 0.0f : x / y; }

inline int opaque(int value) { return value; }

inline void block_sync(HERE) { emulator::block_sync(where); }

inline void store_partial(Float4* to, Float4 value, HERE) { emulator::store_partial(to, value, where); }
inline Float4 load_partial(const Float4* from, HERE) { return emulator::load_partial(from, where); }
inline void device_fence() { emulator::device_fence(); }
inline u32 count_up(u32* counter, HERE) { return emulator::count_up(counter, where); }
