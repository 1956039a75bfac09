// Wrappers of PTX's loads, stores and copies of shared and global memory; ptx.cuh includes this file.
#pragma once
#include "ptx.cuh"

// --- shared memory --------------------------------------------------------------------------------------------

// Four 8x8 matrices of 16-bit elements. Lane 8q + r names the 16 bytes of row r of matrix q; in its q-th word it
// holds elements (lane / 4, 2 (lane % 4)) and the next one of matrix q.
DEVICE void store_matrices(u32 row, u32 w0, u32 w1, u32 w2, u32 w3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(w0), "r"(w1),
                 "r"(w2), "r"(w3)
                 : "memory");
}

// The same with each matrix transposed as it is stored: lane 8q + r has the address of *column* r of matrix q.
DEVICE void store_matrices_transposed(u32 row, u32 w0, u32 w1, u32 w2, u32 w3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(w0), "r"(w1),
                 "r"(w2), "r"(w3)
                 : "memory");
}

// The inverses of both: what they stored from there, as they took it.
DEVICE void load_matrices(u32 row, u32 (&w)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(row)
                 : "memory");
}

DEVICE void load_matrices_transposed(u32 row, u32 (&w)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(row)
                 : "memory");
}

// Stores to a staging buffer: 4 bytes, and 8 at a multiple of 8.
DEVICE void store_staged(u32 to, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}

DEVICE void store_staged(u32 to, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
}

// 2 bytes.
DEVICE void store_staged(u32 to, u16 value) { asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(value) : "memory"); }

// Before threads load what others of their warp, or of a named barrier, have written to a staging buffer.
DEVICE void sync_warp_stores() { __syncwarp(); }
DEVICE void sync_stores(u32 name, u32 threads) { named_sync(name, threads); }

DEVICE void store_shared(u32 to, u32 value) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

DEVICE void store_shared_half(u32 to, u16 value) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(value) : "memory");
}

DEVICE u32 load_shared(u32 from) {
    u32 value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
    return value;
}

DEVICE u16 load_shared_half(u32 from) {
    u16 value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(from) : "memory");
    return value;
}

DEVICE u32 load_shared_byte(u32 from) {
    u32 value;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
    return value;
}

// From a multiple of 16.
DEVICE void load_words(u32 from, u32& w0, u32& w1, u32& w2, u32& w3) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w0), "=r"(w1), "=r"(w2), "=r"(w3) : "r"(from) : "memory");
}

// The word that begins `bits` (below 32) above the low end of two.
DEVICE u32 shift_pair(u32 low, u32 high, u32 bits) {
    u32 word;
    asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(low), "r"(high), "r"(bits));
    return word;
}

DEVICE void store_float(u32 to, float value) { store_shared(to, __float_as_uint(value)); }

DEVICE float load_float(u32 from) { return __uint_as_float(load_shared(from)); }

// To the same offset in the CTA of that rank in the cluster.
DEVICE void store_float(u32 to, u32 rank, float value) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "st.shared::cluster.f32 [there], %2;\n"
        "}" ::"r"(to),
        "r"(rank), "f"(value)
        : "memory");
}

// 8 bytes, at a multiple of 8.
DEVICE void load_shared_pair(u32 from, float (&to)[2]) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(to[0]), "=f"(to[1]) : "r"(from) : "memory");
}

// 16 bytes, at a multiple of 16.
DEVICE Float4 load_four(u32 from) {
    Float4 value;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(from)
                 : "memory");
    return value;
}

// The address of `name` in the CTA of that rank, as store_async() takes it.
DEVICE u32 cluster_address(u32 name, u32 rank) {
    u32 address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(name), "r"(rank));
    return address;
}

// 16 bytes, to a CTA that counts them at a barrier of its own.
DEVICE void store_async(u32 to, Float4 value, u32 barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
        "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
        : "memory");
}

// --- global memory shared between CTAs ----------------------------------------------------------------------

// The old value.
DEVICE u64 add_to_counter(u64* counter, u64 what) {
    u64 old;
    asm volatile("atom.global.acq_rel.gpu.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(counter), "l"(what) : "memory");
    return old;
}

DEVICE u64 load_counter(const u64* counter) {
    u64 value;
    asm volatile("ld.global.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(counter) : "memory");
    return value;
}

// 1 and 2 bytes; 4, 8 or 16 bytes, at a multiple of as many; zeros where `there` is false. In the order of the program, so that all
// loads that can be under way at once are.
DEVICE void load_byte_if(const void* from, bool there, u32 (&to)[1]) {
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "setp.ne.u32 there, %2, 0;\n"
        "mov.u32 %0, 0;\n"
        "@there ld.global.u8 %0, [%1];\n"
        "}"
        : "=r"(to[0])
        : "l"(from), "r"(static_cast<u32>(there))
        : "memory");
}
DEVICE void load_half_if(const void* from, bool there, u32 (&to)[1]) {
    u16 low;
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "setp.ne.u32 there, %2, 0;\n"
        "mov.u16 %0, 0;\n"
        "@there ld.global.u16 %0, [%1];\n"
        "}"
        : "=h"(low)
        : "l"(from), "r"(static_cast<u32>(there))
        : "memory");
    to[0] = low;
}
DEVICE void load_if(const void* from, bool there, u32 (&to)[1]) {
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "setp.ne.u32 there, %2, 0;\n"
        "mov.u32 %0, 0;\n"
        "@there ld.global.u32 %0, [%1];\n"
        "}"
        : "=r"(to[0])
        : "l"(from), "r"(static_cast<u32>(there))
        : "memory");
}
DEVICE void load_if(const void* from, bool there, u32 (&to)[2]) {
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "setp.ne.u32 there, %3, 0;\n"
        "mov.u32 %0, 0;\n"
        "mov.u32 %1, 0;\n"
        "@there ld.global.v2.u32 {%0, %1}, [%2];\n"
        "}"
        : "=r"(to[0]), "=r"(to[1])
        : "l"(from), "r"(static_cast<u32>(there))
        : "memory");
}
DEVICE void load_if(const void* from, bool there, u32 (&to)[4]) {
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "setp.ne.u32 there, %5, 0;\n"
        "mov.u32 %0, 0;\n"
        "mov.u32 %1, 0;\n"
        "mov.u32 %2, 0;\n"
        "mov.u32 %3, 0;\n"
        "@there ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
        "}"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "l"(from), "r"(static_cast<u32>(there))
        : "memory");
}

// 16 bytes, at multiples of as many, to shared memory; zeros where `there` is false. Belongs to the thread's open group.
DEVICE void copy_async(u32 to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// The same of 4 bytes.
DEVICE void copy_word_async(u32 to, const void* from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}

// Stores to D: 16 bytes at a multiple of 16, 4, 2 and 1.
DEVICE void store_words(void* to, u32 w0, u32 w1, u32 w2, u32 w3) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w0), "r"(w1), "r"(w2), "r"(w3) : "memory");
}
DEVICE void store_word(void* to, u32 value) { *static_cast<u32*>(to) = value; }
DEVICE void store_half(void* to, u16 value) { *static_cast<u16*>(to) = value; }
DEVICE void store_byte(void* to, u32 value) { *static_cast<unsigned char*>(to) = static_cast<unsigned char>(value); }

// A word that other CTAs write.
DEVICE u32 load_word(const u32* from) {
    u32 value;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

// Sets bits of a word that many CTAs set and few find unset.
DEVICE void mark(u32* word, u32 bits) {
    if ((load_word(word) & bits) != bits) atomicOr(word, bits);
}

// Sets a bit of such a word. Returns whether this thread is the first one.
DEVICE bool mark_first(u32* word, u32 bit) { return (load_word(word) & bit) == 0 && (atomicOr(word, bit) & bit) == 0; }

// Raises a word that many CTAs raise.
DEVICE void raise_to(u32* word, u32 value) {
    if (load_word(word) < value) atomicMax(word, value);
}
