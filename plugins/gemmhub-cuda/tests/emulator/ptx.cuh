// In place of gemmhub_cuda/kernels/ptx.cuh: the same functions for a host compiler.
#pragma once
#include "device.cuh"

struct alignas(8) Word2 {
    u32 x, y;
};
struct alignas(16) Word4 {
    u32 x, y, z, w;
};

using emulator::copy_commit, emulator::warp_sync;

inline u32 lane_id() { return threadIdx.x % 32; }
inline u32 warp_id(HERE) { return emulator::max_of_lanes(threadIdx.x / 32, 32, where); }  // a shuffle: all lanes take part
inline u32 dynamic_shared() { return emulator::WINDOW + 16; }  // as badly aligned as may be

template <int lanes>
inline u32 max_of_lanes(u32 value, HERE) {
    return emulator::max_of_lanes(value, lanes, where);
}

template <int bytes>
inline void copy_async(u32 to, const void* from, u32 valid, HERE) {
    static_assert(bytes == 4 || bytes == 8 || bytes == 16);
    emulator::copy_async(to, from, bytes, valid, where);
}
template <int open>
inline void copy_wait() {
    emulator::copy_wait(open);
}

inline void load_matrices(u32 (&word)[4], u32 row, HERE) { emulator::load_matrices(word, row, false, where); }
inline void load_matrices_transposed(u32 (&word)[4], u32 row, HERE) { emulator::load_matrices(word, row, true, where); }
template <int type>
inline void multiply_add(float* d, const u32 (&a)[4], u32 b0, u32 b1, HERE) {
    if constexpr (type >= 4)
        emulator::multiply_add_float8(d, a, b0, b1, type, where);
    else
        emulator::multiply_add(d, a, b0, b1, type, where);
}

template <int type>
inline void multiply_add(int* d, const u32 (&a)[4], u32 b0, u32 b1, HERE) {
    emulator::multiply_add(d, a, b0, b1, where);
}
inline u32 bytes_at(u32 first, u32 second, int shift) {
    return (first >> shift & 0xff) | (first >> (16 + shift) & 0xff) << 8 | (second >> shift & 0xff) << 16 |
           (second >> (16 + shift) & 0xff) << 24;
}
inline u32 even_bytes(u32 first, u32 second) { return bytes_at(first, second, 0); }
inline u32 odd_bytes(u32 first, u32 second) { return bytes_at(first, second, 8); }

template <class Type>
inline void store_shared(u32 to, Type value, HERE) {
    emulator::store_shared(to, &value, sizeof(Type), where);
}
template <class Type>
inline Type load_shared(u32 from, HERE) {
    Type value;
    emulator::load_shared(&value, from, sizeof(Type), where);
    return value;
}

template <class Type>
inline Type load_global(const Type* from, HERE) {
    emulator::check_global(from, sizeof(Type), false, where);
    return *from;
}
template <class Type>
inline void store_global(Type* to, Type value, HERE) {
    emulator::check_global(to, sizeof(Type), true, where);
    *to = value;
}
