// The emulated multiprocessor, as the emulating device.cuh and ptx.cuh see it; compiled once for all kernels.
#pragma once
#include "simt/device.hpp"
#include "simt/schedule.hpp"

// As default argument: the line of the call.
#define HERE simt::Where where = {__builtin_FILE(), __builtin_LINE()}

namespace emulator {

using simt::Where;

constexpr u32 WINDOW = 1u << 24;  // the shared address of a block's first byte

void block_sync(HERE);
void warp_sync(HERE);

void load_shared(void* value, u32 from, u32 bytes, Where where);
void store_shared(u32 to, const void* value, u32 bytes, Where where);

void copy_async(u32 to, const void* from, u32 bytes, u32 valid, Where where);
void copy_commit();
void copy_wait(u32 open);

u32 max_of_lanes(u32 value, u32 lanes, Where where);
void load_matrices(u32* word, u32 row, bool transposed, Where where);
void multiply_add(float* d, const u32* a, u32 b0, u32 b1, int type, Where where);
void multiply_add_float8(float* d, const u32* a, u32 b0, u32 b1, int type, Where where);
void multiply_add(int* d, const u32* a, u32 b0, u32 b1, Where where);

void check_global(const void* address, u32 bytes, bool write, Where where);
void store_partial(Float4* to, Float4 value, HERE);
Float4 load_partial(const Float4* from, HERE);
void device_fence();
u32 count_up(u32* counter, HERE);
void maybe_switch();

}  // namespace emulator
