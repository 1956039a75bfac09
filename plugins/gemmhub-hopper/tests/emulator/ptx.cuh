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

#define __cluster_dims__(...)
#define SHARED_MEMORY static

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
inline void barrier_wait(u32 barrier, u32 parity) { emulator::wait_for(barrier, parity); }
inline void named_sync(u32 name, u32 threads) {
    emulator::meet(emulator::here().named[name], threads, "named sync", name);
}
inline void block_sync() {
    emulator::publish_barriers(emulator::IN_BLOCK);
    if (emulator::machine->random() % 4 == 0) emulator::finish_loads(0);  // not waited for: it may happen now, or later
    named_sync(0, emulator::machine->threads);
}
inline u32 block_or(u32 bits) {
    emulator::Block& block = emulator::here();
    block.gathered |= bits;
    emulator::publish_barriers(emulator::IN_BLOCK);
    emulator::me().number = 0;
    emulator::machine->meet(block.named[0], emulator::machine->threads, {"named sync"},
                            [&] { block.all = block.gathered, block.gathered = 0; });
    return block.all;
}
inline u32 warp_or(u32 bits) {
    emulator::exchange(&bits, [](void** lanes) {
        u32 all = 0;
        for (u32 i = 0; i < 32; ++i) all |= *static_cast<u32*>(lanes[i]);
        for (u32 i = 0; i < 32; ++i) *static_cast<u32*>(lanes[i]) = all;
    });
    return bits;
}
inline u32 warp_min(u32 number) {
    emulator::exchange(&number, [](void** lanes) {
        u32 least = 0xffffffff;
        for (u32 i = 0; i < 32; ++i) least = std::min(least, *static_cast<u32*>(lanes[i]));
        for (u32 i = 0; i < 32; ++i) *static_cast<u32*>(lanes[i]) = least;
    });
    return number;
}
inline float shuffle_xor(float value, u32 lanes) {
    struct {
        float given, taken;
        u32 from;
    } mine = {value, 0, lane_id() ^ lanes};
    using Mine = decltype(mine);
    emulator::exchange(&mine, [](void** all) {
        for (u32 i = 0; i < 32; ++i) {
            Mine& lane = *static_cast<Mine*>(all[i]);
            lane.taken = static_cast<Mine*>(all[lane.from])->given;
        }
    });
    return mine.taken;
}
inline void cluster_sync() {
    emulator::publish_barriers(emulator::IN_CLUSTER);
    const u32 number = emulator::me().block / emulator::machine->cluster;
    emulator::meet(emulator::machine->clusters[number], emulator::machine->threads * emulator::machine->cluster,
                   "cluster sync", number);
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
inline void wgmma_commit() { emulator::me().multiplies.commit(); }
template <int open>
inline void wgmma_wait() {
    emulator::finish_multiplies(open);
    emulator::warp_meet();
}
inline void pin(float&) {}
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
inline void sync_warp_stores() {
    async_fence();  // TMA is not asked for what these functions publish
    emulator::warp_meet();
}
inline void sync_stores(u32 name, u32 threads) {
    async_fence();
    named_sync(name, threads);
}
inline void store_shared(u32 to, u32 value) { memcpy(emulator::shared_at(emulator::here(), to), &value, 4); }
// Into a register, which may be a fragment's.
inline u32 load_shared(u32 from) {
    emulator::me().fenced = false;
    return read_as<u32>(emulator::shared_at(emulator::here(), from));
}

inline u16 load_shared_half(u32 from) { return read_as<u16>(emulator::shared_at(emulator::here(), from)); }
inline void load_words(u32 from, u32& w0, u32& w1, u32& w2, u32& w3) {
    if (from % 16) emulator::fail("a load from an address that is not aligned");
    emulator::me().fenced = false;
    w0 = load_shared(from), w1 = load_shared(from + 4), w2 = load_shared(from + 8), w3 = load_shared(from + 12);
}
inline u32 shift_pair(u32 low, u32 high, u32 bits) { return u32((u64(high) << 32 | low) >> bits); }

inline void store_float(u32 to, float value) { memcpy(emulator::shared_at(emulator::here(), to), &value, 4); }
inline float load_float(u32 from) {
    emulator::me().fenced = false;
    return read_as<float>(emulator::shared_at(emulator::here(), from));
}
inline void store_float(u32 to, u32 rank, float value) {
    emulator::Block& block = emulator::machine->blocks[emulator::me().block - cluster_rank() + rank];
    if (block.alive == 0) emulator::fail("a store to a block that has ended");
    memcpy(emulator::shared_at(block, to), &value, 4);
}
inline Float4 load_four(u32 from) {
    if (from % 16) emulator::fail("a load from an address that is not aligned");
    return read_as<Float4>(emulator::shared_at(emulator::here(), from));
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
    emulator::me().loads.add({to, there ? from : nullptr});
    emulator::maybe_yield();
}
inline void copy_commit() { emulator::me().loads.commit(); }
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
    emulator::machine->yield();
    return *counter;
}

inline void store_word(void* to, u32 value) {
    emulator::touch();
    if (reinterpret_cast<size_t>(to) % 4) emulator::fail("an address that is not aligned");
    memcpy(to, &value, 4);
    emulator::maybe_yield();
}
inline void store_words(void* to, u32 w0, u32 w1, u32 w2, u32 w3) {
    emulator::touch();
    if (reinterpret_cast<size_t>(to) % 16) emulator::fail("an address that is not aligned");
    const u32 words[] = {w0, w1, w2, w3};
    memcpy(to, words, 16);
    emulator::maybe_yield();
}
inline void store_half(void* to, u16 value) {
    emulator::touch();
    memcpy(to, &value, 2);
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

inline u16 round_bf16(float value) { return to_bf16(value); }
inline u16 round_f16(float value) { return to_f16(value); }
