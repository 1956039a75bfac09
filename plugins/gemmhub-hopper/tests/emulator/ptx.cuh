// In place of gemmhub_hopper/kernels/ptx.cuh: the same functions for a host compiler, most of them in ptx.cpp.
//
// Threads of a launch are fibers that switch at random where they wait. What Hopper does asynchronously happens at a
// random later moment, or at the last one that its rules allow: TMA's loads and stores, the reads of wgmma. What is
// written by ordinary stores is seen by TMA after a fence of the thread that wrote it, and only then. So a missing wait, a
// wrong count or address shows as a wrong number, an error or a deadlock. wgmma needs a fence after its registers were
// written or exposed, and a barrier one after it was made, before others use it: else an error.
#pragma once
#include "machine.hpp"
#include "types.cuh"

#define __CUDACC_VER_MAJOR__ 13

#define __cluster_dims__(...)
#define SHARED_MEMORY static

inline u32 lane_id() { return threadIdx.x % 32; }
u32 warp_id();
bool elect_one();
void wait_on_dependent_grids();
inline void launch_dependent_grids() {}
inline void prefetch(const void*) {}
u32 cluster_rank();
u32 dynamic_shared();

void barrier_init(u32 barrier, u32 arrivals);
void barrier_init_fence();
void barrier_arrive_expect(u32 barrier, u32 bytes);
void barrier_arrive(u32 barrier);
void barrier_arrive_cluster(u32 barrier, u32 rank);
void barrier_wait(u32 barrier, u32 parity);
void named_sync(u32 name, u32 threads);
void block_sync();
u32 block_or(u32 bits);
u32 warp_or(u32 bits);
u32 warp_min(u32 number);
u32 warp_max(u32 number);
float shuffle_xor(float value, u32 lanes);
void cluster_sync();

inline void cluster_arrive() {}
void cluster_wait();

inline void prefetch_map(const TensorMap*) {}
void tma_load(u32 to, const TensorMap* map, int x, int y, int z, u32 barrier);
void tma_load_multicast(u32 to, const TensorMap* map, int x, int y, int z, u32 barrier, u16 blocks);
void tma_store(const TensorMap* map, u32 from, int x, int y, int z, bool);
void tma_store_commit();
void tma_store_wait_read();
void tma_store_wait_all();
void async_fence();

void wgmma_fence();
void wgmma_commit();
template <int open>
inline void wgmma_wait() {
    emulator::wait_multiplies(open);
}
inline void pin(float&) {}
inline void pin(int&) {}
inline long long opaque(long long value) { return value; }
template <int count>
inline void warpgroup_reg_dealloc() {}
template <int count>
inline void warpgroup_reg_alloc() {}

void store_matrices(u32 row, u32 w0, u32 w1, u32 w2, u32 w3);
void store_matrices_transposed(u32 row, u32 w0, u32 w1, u32 w2, u32 w3);
void load_matrices(u32 row, u32 (&w)[4]);
void load_matrices_transposed(u32 row, u32 (&w)[4]);
void store_staged(u32 to, float value);
void store_staged(u32 to, float first, float second);
void store_staged(u32 to, u16 value);
void sync_warp_stores();
void sync_stores(u32 name, u32 threads);
void store_shared(u32 to, u32 value);
void store_shared_half(u32 to, u16 value);
// Into a register, which may be a fragment's.
u32 load_shared(u32 from);

u16 load_shared_half(u32 from);
u32 load_shared_byte(u32 from);
void load_words(u32 from, u32& w0, u32& w1, u32& w2, u32& w3);
inline u32 shift_pair(u32 low, u32 high, u32 bits) { return u32((u64(high) << 32 | low) >> bits); }

void store_float(u32 to, float value);
float load_float(u32 from);
void store_float(u32 to, u32 rank, float value);
Float4 load_four(u32 from);
// The rank is above the bits of a place in the window.
inline u32 cluster_address(u32 name, u32 rank) { return name | rank << 25; }
void store_async(u32 to, Float4 value, u32 barrier);
void load_shared_pair(u32 from, float (&to)[2]);

void store_partial(Float4* to, Float4 value);
Float4 load_partial(const Float4* from);
void load_byte_if(const void* from, bool there, u32 (&to)[1]);
void load_half_if(const void* from, bool there, u32 (&to)[1]);
template <size_t words>
inline void load_if(const void* from, bool there, u32 (&to)[words]) {
    emulator::load_bytes(from, there, to, sizeof(to));
}
void copy_async(u32 to, const void* from, bool there);
void copy_word_async(u32 to, const void* from, bool there);
void copy_commit();
template <int open>
inline void copy_wait() {
    emulator::finish_loads(open);
}
void device_fence();
u32 count_up(u32* counter);

inline u32 __popc(u32 word) { return static_cast<u32>(__builtin_popcount(word)); }
inline int __ffs(u32 word) { return __builtin_ffs(static_cast<int>(word)); }
u64 add_to_counter(u64* counter, u64 what);
u64 load_counter(const u64* counter);

void store_word(void* to, u32 value);
void store_words(void* to, u32 w0, u32 w1, u32 w2, u32 w3);
void store_half(void* to, u16 value);
void store_byte(void* to, u32 value);
u32 load_word(const u32* from);
void mark(u32* word, u32 bits);
bool mark_first(u32* word, u32 bit);
void raise_to(u32* word, u32 value);

u16 pack_e4m3(float low, float high);
u32 unpack_e4m3(u16 both);
int dot_int8(u32 x, u32 y, int sum);
u16 pack_e5m2(float low, float high);
inline u16 round_bf16(float value) { return to_bf16(value); }
inline u16 round_f16(float value) { return to_f16(value); }
