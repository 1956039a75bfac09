// The emulated multiprocessor, as the emulating device.cuh and ptx.cuh see it.
#pragma once
#include "standard.hpp"

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

// A line of the kernel: as default argument, that of the call.
struct Where {
    const char* file;
    int line;
};
#define HERE \
    Where where = { __builtin_FILE(), __builtin_LINE() }

namespace emulator {

constexpr u32 WINDOW = 1u << 24;  // the shared address of a block's first byte

void block_sync(Where where);
void warp_sync(Where where);

void load_shared(void* value, u32 from, u32 bytes, Where where);
void store_shared(u32 to, const void* value, u32 bytes, Where where);

void copy_async(u32 to, const void* from, u32 bytes, u32 valid, Where where);
void copy_commit();
void copy_wait(u32 open);

void load_matrices(u32* word, u32 row, bool transposed, Where where);
void multiply_add(float* d, const u32* a, u32 b0, u32 b1, int type, Where where);

void check_global(const void* address, u32 bytes, bool write, Where where);
void store_partial(Float4* to, Float4 value, Where where);
Float4 load_partial(const Float4* from, Where where);
void device_fence();
u32 count_up(u32* counter, Where where);
void maybe_switch();

}  // namespace emulator
