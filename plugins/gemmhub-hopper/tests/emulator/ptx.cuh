// In place of gemmhub_hopper/kernels/ptx.cuh: the same functions for a host compiler.
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

#define GLOBAL_KERNEL extern "C"
#define DEVICE inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define SHARED_MEMORY static

struct alignas(16) Float4 {
    float x, y, z, w;
};

inline u32 lane_id() { return threadIdx.x % 32; }
inline u32 warp_id() {
    emulator::warp_meet();  // lanes are asked
    return emulator::me().thread / 32;
}
inline bool elect_one() {
    emulator::warp_meet();
    return lane_id() == 0;
}
inline void wait_on_dependent_grids() { emulator::me().waited = true; }
inline void launch_dependent_grids() {}
inline void prefetch(const void*) {}
inline u32 cluster_rank() { return emulator::me().block % emulator::machine->cluster; }
inline u32 dynamic_shared() { return emulator::WINDOW + 16; }  // as badly aligned as may be

inline void barrier_init(u32 barrier, u32 arrivals) {
    if (barrier % 8) emulator::fail("a barrier that is not aligned");
    emulator::here().barriers[barrier] = {arrivals, arrivals, emulator::machine->current};
}
inline void barrier_init_fence() { emulator::fence_barriers(); }
inline void barrier_arrive_expect(u32 barrier, u32 bytes) {
    emulator::arrive(emulator::here(), barrier, bytes);
    emulator::maybe_yield();
}
inline void barrier_arrive(u32 barrier) {
    emulator::arrive(emulator::here(), barrier, 0);
    emulator::maybe_yield();
}
inline void barrier_arrive_cluster(u32 barrier, u32 rank) {
    const u32 first = emulator::me().block / emulator::machine->cluster * emulator::machine->cluster;
    emulator::arrive(emulator::machine->blocks[first + rank], barrier, 0);
    emulator::maybe_yield();
}
inline void barrier_wait(u32 barrier, u32 parity) {
    emulator::maybe_yield();
    if (emulator::barrier_of(emulator::here(), barrier).parity == parity)
        emulator::pause(emulator::BARRIER, barrier, parity);
}
inline void named_sync(u32 name, u32 threads) {
    emulator::meet(emulator::here().named[name], threads, emulator::NAMED, name);
}
inline void block_sync() {
    emulator::publish_barriers(emulator::IN_BLOCK);
    named_sync(0, emulator::machine->threads);
}
// Once a kernel.
inline u32 block_or(u32 bits) {
    emulator::here().gathered |= bits;
    block_sync();
    return emulator::here().gathered;
}
inline u32 warp_or(u32 bits) {
    auto& lanes = emulator::here().lanes[emulator::me().thread / 32];
    lanes[lane_id()][0] = bits;
    emulator::warp_meet();
    for (auto& lane : lanes) bits |= lane[0];
    emulator::warp_meet();
    return bits;
}
inline float shuffle_xor(float value, u32 lanes) {
    auto& all = emulator::here().lanes[emulator::me().thread / 32];
    memcpy(&all[lane_id()][0], &value, 4);
    emulator::warp_meet();
    memcpy(&value, &all[lane_id() ^ lanes][0], 4);
    emulator::warp_meet();
    return value;
}
inline void cluster_sync() {
    emulator::publish_barriers(emulator::IN_CLUSTER);
    const u32 number = emulator::me().block / emulator::machine->cluster;
    emulator::meet(emulator::machine->clusters[number], emulator::machine->threads * emulator::machine->cluster,
                   emulator::CLUSTER_SYNC, number);
}

inline void cluster_arrive() {}
inline void cluster_wait() { cluster_sync(); }

inline void prefetch_map(const TensorMap*) {}
inline void tma_load(u32 to, const TensorMap* map, int x, int y, int z, u32 barrier) {
    emulator::start(map, to, x, y, z, barrier, 1u << cluster_rank());
}
inline void tma_load_multicast(u32 to, const TensorMap* map, int x, int y, int z, u32 barrier, u16 blocks) {
    emulator::start(map, to, x, y, z, barrier, blocks);
}
inline void tma_store(const TensorMap* map, u32 from, int x, int y, int z, bool) {
    emulator::start(map, from, x, y, z, 0, 0);
}
inline void tma_store_commit() { ++emulator::me().store_group; }
inline void tma_store_wait_read() { emulator::finish_stores(); }
inline void tma_store_wait_all() { emulator::finish_stores(); }
inline void async_fence() {
    auto& written = emulator::me().unfenced;
    for (auto& [address, bits] : written) memcpy(emulator::shared_at(emulator::here(), address), &bits, 2);
    written.clear();
}

inline void wgmma_fence() { emulator::me().fenced = true; }
inline void wgmma_commit() { ++emulator::me().group; }
template <int open>
inline void wgmma_wait() {
    emulator::finish_multiplies(open);
    emulator::warp_meet();
}
inline void pin(float&) {}
inline int opaque(int value) { return value; }
inline long long opaque(long long value) { return value; }
template <int count>
inline void warpgroup_reg_dealloc() {}
template <int count>
inline void warpgroup_reg_alloc() {}

inline void store_matrices(u32 row, u32 w0, u32 w1, u32 w2, u32 w3) {
    emulator::store_fragments(row, {w0, w1, w2, w3}, false);
}
inline void store_matrices_transposed(u32 row, u32 w0, u32 w1, u32 w2, u32 w3) {
    emulator::store_fragments(row, {w0, w1, w2, w3}, true);
}
inline void store_staged(u32 to, float value) { emulator::store_floats(to, &value, 1); }
inline void store_staged(u32 to, float first, float second) {
    const float both[] = {first, second};
    emulator::store_floats(to, both, 2);
}
inline void store_shared(u32 to, u32 value) { memcpy(emulator::shared_at(emulator::here(), to), &value, 4); }
// Into a register, which may be a fragment's.
inline u32 load_shared(u32 from) {
    emulator::me().fenced = false;
    u32 value;
    memcpy(&value, emulator::shared_at(emulator::here(), from), 4);
    return value;
}

inline void store_float(u32 to, float value) { memcpy(emulator::shared_at(emulator::here(), to), &value, 4); }
inline float load_float(u32 from) {
    emulator::me().fenced = false;
    float value;
    memcpy(&value, emulator::shared_at(emulator::here(), from), 4);
    return value;
}
inline void store_float(u32 to, u32 rank, float value) {
    emulator::Block& block = emulator::machine->blocks[emulator::me().block - cluster_rank() + rank];
    if (block.alive == 0) emulator::fail("a store to a block that has ended");
    memcpy(emulator::shared_at(block, to), &value, 4);
}
inline Float4 load_four(u32 from) {
    if (from % 16) emulator::fail("a load from an address that is not aligned");
    Float4 value;
    memcpy(&value, emulator::shared_at(emulator::here(), from), 16);
    return value;
}
// The rank is above the bits of a place in the window.
inline u32 cluster_address(u32 name, u32 rank) { return name | rank << 25; }
inline void store_async(u32 to, Float4 value, u32 barrier) {
    emulator::Block& block = emulator::machine->blocks[emulator::me().block - cluster_rank() + (to >> 25)];
    if (to % 16) emulator::fail("a store to an address that is not aligned");
    if (block.alive == 0) emulator::fail("a store to a block that has ended");
    memcpy(emulator::shared_at(block, to % (1u << 25)), &value, 16);
    emulator::Barrier& sum = emulator::barrier_of(block, barrier % (1u << 25));
    sum.bytes -= 16;
    emulator::settle(sum);
    emulator::maybe_yield();
}
inline void load_shared_pair(u32 from, float (&to)[2]) {
    if (from % 8) emulator::fail("a load from an address that is not aligned");
    emulator::me().fenced = false;
    memcpy(to, emulator::shared_at(emulator::here(), from), 8);
}

inline void store_partial(Float4* to, Float4 value) {
    emulator::touch();
    *to = value;
}
inline Float4 load_partial(const Float4* from) {
    emulator::touch();
    return *from;
}
inline void load_half_if(const void* from, bool there, u32 (&to)[1]) {
    emulator::touch();
    to[0] = 0;
    if (there) memcpy(to, from, 2);
}
template <size_t words>
inline void load_if(const void* from, bool there, u32 (&to)[words]) {
    emulator::touch();
    if (there && reinterpret_cast<size_t>(from) % sizeof(to)) emulator::fail("an address that is not aligned");
    memset(to, 0, sizeof(to));
    if (there) memcpy(to, from, sizeof(to));
}
inline void copy_async(u32 to, const void* from, bool there) {
    emulator::touch();
    if (to % 16 || (there && reinterpret_cast<size_t>(from) % 16)) emulator::fail("an address that is not aligned");
    emulator::me().loads.push_back({to, there ? from : nullptr, emulator::me().load_group});
    emulator::maybe_yield();
}
inline void copy_commit() { ++emulator::me().load_group; }
template <int open>
inline void copy_wait() {
    emulator::finish_loads(open);
}
inline void device_fence() { emulator::maybe_yield(); }
inline u32 count_up(u32* counter) {
    emulator::touch();
    return (*counter)++;
}

inline u32 __popc(u32 word) { return static_cast<u32>(__builtin_popcount(word)); }
inline int __ffs(u32 word) { return __builtin_ffs(static_cast<int>(word)); }
inline u64 add_to_counter(u64* counter, u64 what) {
    emulator::touch();
    const u64 old = *counter;
    *counter += what;
    emulator::maybe_yield();
    return old;
}
inline u64 load_counter(const u64* counter) {
    emulator::touch();
    emulator::pause(emulator::READY, 0, 0);
    return *counter;
}

inline u32 load_word(const u32* from) {
    emulator::touch();
    return *from;
}
inline void mark(u32* word, u32 bits) {
    emulator::touch();
    *word |= bits;
}
inline void raise_to(u32* word, u32 value) {
    emulator::touch();
    *word = std::max(*word, value);
}

inline u32 __float_as_uint(float value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline float __uint_as_float(u32 bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline float infinity() { return INFINITY; }
inline u16 round_bf16(float value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    if (value != value) return 0x7fff;
    return u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline u16 round_f16(float value) {
    const _Float16 half = static_cast<_Float16>(value);
    u16 bits;
    memcpy(&bits, &half, 2);
    return bits;
}
inline u32 pack_bf16(float low, float high) { return round_bf16(low) | u32(round_bf16(high)) << 16; }
inline u32 pack_f16(float low, float high) { return round_f16(low) | u32(round_f16(high)) << 16; }
inline float from_f16(u16 bits) {
    _Float16 half;
    memcpy(&half, &bits, 2);
    return float(half);
}
inline float from_bf16(u16 bits) {
    const u32 wide = u32(bits) << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
inline float exp2_fast(float x) { return std::exp2(x); }
inline float divide_fast(float x, float y) { return std::fabs(y) > 8.5e37f && std::isfinite(x) ? x * 0.0f : x / y; }
