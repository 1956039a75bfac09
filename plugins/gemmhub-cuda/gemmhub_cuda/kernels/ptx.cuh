// Warps, shared memory, asynchronous copies and tensor cores, as functions; what else the device has is in device.cuh.
//
// "shared address" is a 32-bit address in the shared window of this thread block, in bytes. Shared and global memory
// are reached through the functions below only, not through pointers: tests/emulator has the same functions for a host
// compiler, and checks bounds, alignment and missing barriers there.
#pragma once
#include "device.cuh"

// What one access of 8 or 16 bytes moves.
struct alignas(8) Word2 {
    u32 x, y;
};
struct alignas(16) Word4 {
    u32 x, y, z, w;
};

// Shared address of the memory that the launch requested; a multiple of 16.
DEVICE u32 dynamic_shared() {
    extern __shared__ __align__(16) unsigned char memory[];
    return static_cast<u32>(__cvta_generic_to_shared(memory));
}

// --- synchronisation ------------------------------------------------------------------------------------------

// What the 32 lanes of a warp stored to shared memory before is seen by all of them after. (For the whole block:
// block_sync of device.cuh.)
DEVICE void warp_sync() { __syncwarp(); }

// The largest value of each `lanes` adjacent lanes, a power of 2.
template <int lanes>
DEVICE u32 max_of_lanes(u32 value) {
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2) {
        const u32 other = __shfl_xor_sync(0xffffffffu, value, step);
        value = value > other ? value : other;
    }
    return value;
}

// --- asynchronous copies from global to shared memory (cp.async) ----------------------------------------------

// Copies the first `valid` of `bytes` (4, 8 or 16) bytes and fills up with 0; both addresses are multiples of `bytes`.
// With `valid` 0 nothing is read. Belongs to the thread's open group.
template <int bytes>
DEVICE void copy_async(u32 to, const void* from, u32 valid) {
    if constexpr (bytes == 16)  // past L1, and L2 fetches 128 bytes: the bytes beside these are wanted next
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(bytes), "r"(valid)
                     : "memory");
}

// --- tensor cores ---------------------------------------------------------------------------------------------

// Four 8x8 matrices of 16-bit elements. Lane 8q + r names the 16 bytes of row r of matrix q (a multiple of 16); its
// word q becomes elements (lane / 4, 2 (lane % 4)) and the next one of matrix q.
DEVICE void load_matrices(u32 (&word)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(row)
                 : "memory");
}

// The same with each matrix transposed: word q is elements (2 (lane % 4), lane / 4) and the one below it of matrix q.
DEVICE void load_matrices_transposed(u32 (&word)[4], u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(row)
                 : "memory");
}

// d (16 x 8) += a (16 x 32) b (32 x 8) of 8-bit floats, by a warp, with sums of float32, of which tensor cores may keep
// 14 bits. Words are those of int8, below. `type`: as INPUT of params.cuh. From compute capability 8.9 on.
template <int type>
DEVICE void multiply_add_float8(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
#define MULTIPLY_ADD(of_a, of_b)                                                                 \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32." of_a "." of_b ".f32 {%0, %1, %2, %3}, " \
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                 \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if constexpr (type == 4) MULTIPLY_ADD("e4m3", "e4m3");
    if constexpr (type == 5) MULTIPLY_ADD("e4m3", "e5m2");
    if constexpr (type == 6) MULTIPLY_ADD("e5m2", "e4m3");
    if constexpr (type == 7) MULTIPLY_ADD("e5m2", "e5m2");
#undef MULTIPLY_ADD
}

// d (16 x 8) += a (16 x 16) b (16 x 8), by a warp. `type`: 0 bfloat16, 1 float16; 8-bit floats as above.
// With g = lane / 4, t = 2 (lane % 4):
//     a[0] (g, t..t+1), a[1] (g + 8, t..), a[2] (g, t + 8..), a[3] (g + 8, t + 8..)
//     b0 (t..t+1, g), b1 (t + 8.., g)
//     d[0..1] (g, t..t+1), d[2..3] (g + 8, t..)
template <int type>
DEVICE void multiply_add(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (type >= 4)
        multiply_add_float8<type>(d, a, b0, b1);
    else if constexpr (type == 0)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else if constexpr (type == 1)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of int8 with sums of int32, modulo 2^32: d (16 x 8) += a (16 x 32) b (32 x 8), four of k in each word. With
// g = lane / 4, t = 4 (lane % 4):
//     a[0] (g, t..t+3), a[1] (g + 8, t..), a[2] (g, t + 16..), a[3] (g + 8, t + 16..)
//     b0 (t..t+3, g), b1 (t + 16.., g); d as above
template <int type>
DEVICE void multiply_add(int* d, const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Bytes 0 and 2 of `first`, then of `second`; and bytes 1 and 3.
DEVICE u32 even_bytes(u32 first, u32 second) { return __byte_perm(first, second, 0x6420); }
DEVICE u32 odd_bytes(u32 first, u32 second) { return __byte_perm(first, second, 0x7531); }

// --- shared memory: addresses are multiples of the size -------------------------------------------------------

DEVICE void store_shared(u32 to, u32 value) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

DEVICE void store_shared(u32 to, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}

DEVICE void store_shared(u32 to, Word2 value) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(value.x), "r"(value.y) : "memory");
}

DEVICE void store_shared(u32 to, Word4 value) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z),
                 "r"(value.w)
                 : "memory");
}

DEVICE void store_shared(u32 to, Float4 value) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(value.x), "f"(value.y), "f"(value.z),
                 "f"(value.w)
                 : "memory");
}

template <class Type>
DEVICE Type load_shared(u32 from);

template <>
DEVICE u32 load_shared<u32>(u32 from) {
    u32 value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
    return value;
}

template <>
DEVICE float load_shared<float>(u32 from) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
    return value;
}

template <>
DEVICE Word4 load_shared<Word4>(u32 from) {
    Word4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(from)
                 : "memory");
    return value;
}

template <>
DEVICE Float4 load_shared<Float4>(u32 from) {
    Float4 value;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(from)
                 : "memory");
    return value;
}

// --- global memory --------------------------------------------------------------------------------------------

// Loads what is not written while the kernel runs. `Type`: a number, Word2, Word4 or Float4, aligned to its size.
template <class Type>
DEVICE Type load_global(const Type* from) {
    return *from;
}

template <class Type>
DEVICE void store_global(Type* to, Type value) {
    *to = value;
}
