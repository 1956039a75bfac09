// What ptx.cuh declares: compiled once for all kernels.
#include "ptx.cuh"
#include "launch.hpp"

using namespace emulator;

u32 warp_id() {
    warp_meet();  // lanes are asked
    return me().thread / 32;
}
bool elect_one() {
    warp_meet();
    return lane_id() == 0;
}
void wait_on_dependent_grids() { me().waited = true; }
u32 cluster_rank() { return me().block % machine->cluster; }
u32 dynamic_shared() { return WINDOW + 16; }  // as badly aligned as may be

void barrier_init(u32 barrier, u32 arrivals) {
    if (barrier % 8) fail("a barrier that is not aligned");
    here().barriers[barrier] = {arrivals, arrivals, machine->current};
}
void barrier_init_fence() { fence_barriers(); }
void barrier_arrive_expect(u32 barrier, u32 bytes) {
    arrive(here(), barrier, bytes);
    maybe_yield();
}
void barrier_arrive(u32 barrier) {
    arrive(here(), barrier, 0);
    maybe_yield();
}
void barrier_arrive_cluster(u32 barrier, u32 rank) {
    const u32 first = me().block / machine->cluster * machine->cluster;
    arrive(machine->blocks[first + rank], barrier, 0);
    maybe_yield();
}
void barrier_wait(u32 barrier, u32 parity) { wait_for(barrier, parity); }
void named_sync(u32 name, u32 threads) {
    join_warpgroup();
    meet(here().named[name], threads, "named sync", name);
    learn_of_warpgroup();
}
void block_sync() {
    publish_barriers(IN_BLOCK);
    if (machine->random() % 4 == 0) finish_loads(0);  // not waited for: it may happen now, or later
    named_sync(0, machine->threads);
}
u32 block_or(u32 bits) {
    Block& block = here();
    block.gathered |= bits;
    publish_barriers(IN_BLOCK);
    me().number = 0;
    machine->meet(block.named[0], machine->threads, {"named sync"},
                            [&] { block.all = block.gathered, block.gathered = 0; });
    return block.all;
}
u32 warp_or(u32 bits) {
    exchange(&bits, [](void** lanes) {
        u32 all = 0;
        for (u32 i = 0; i < 32; ++i) all |= *static_cast<u32*>(lanes[i]);
        for (u32 i = 0; i < 32; ++i) *static_cast<u32*>(lanes[i]) = all;
    });
    return bits;
}
u32 warp_min(u32 number) {
    exchange(&number, [](void** lanes) {
        u32 least = 0xffffffff;
        for (u32 i = 0; i < 32; ++i) least = std::min(least, *static_cast<u32*>(lanes[i]));
        for (u32 i = 0; i < 32; ++i) *static_cast<u32*>(lanes[i]) = least;
    });
    return number;
}
u32 warp_max(u32 number) {
    exchange(&number, [](void** lanes) {
        u32 most = 0;
        for (u32 i = 0; i < 32; ++i) most = std::max(most, *static_cast<u32*>(lanes[i]));
        for (u32 i = 0; i < 32; ++i) *static_cast<u32*>(lanes[i]) = most;
    });
    return number;
}
float shuffle_xor(float value, u32 lanes) {
    struct {
        float given, taken;
        u32 from;
    } mine = {value, 0, lane_id() ^ lanes};
    using Mine = decltype(mine);
    exchange(&mine, [](void** all) {
        for (u32 i = 0; i < 32; ++i) {
            Mine& lane = *static_cast<Mine*>(all[i]);
            lane.taken = static_cast<Mine*>(all[lane.from])->given;
        }
    });
    return mine.taken;
}
void cluster_sync() {
    publish_barriers(IN_CLUSTER);
    const u32 number = me().block / machine->cluster;
    meet(machine->clusters[number], machine->threads * machine->cluster,
                   "cluster sync", number);
}
void cluster_wait() { cluster_sync(); }

void tma_load(u32 to, const TensorMap* map, int x, int y, int z, u32 barrier) {
    start(map, to, x, y, z, barrier, 1u << cluster_rank());
}
void tma_load_multicast(u32 to, const TensorMap* map, int x, int y, int z, u32 barrier, u16 blocks) {
    start(map, to, x, y, z, barrier, blocks);
}
void tma_store(const TensorMap* map, u32 from, int x, int y, int z, bool) {
    start(map, from, x, y, z, 0, 0);
}
void tma_store_commit() { ++me().store_group; }
void tma_store_wait_read() { finish_stores(); }
void tma_store_wait_all() { finish_stores(); }
void async_fence() {
    auto& written = me().unfenced;
    for (auto& [address, bits] : written) memcpy(shared_at(here(), address), &bits, 2);
    written.clear();
}

void wgmma_fence() { me().fenced = true; }
void wgmma_commit() { me().multiplies.commit(); }

void store_matrices(u32 row, u32 w0, u32 w1, u32 w2, u32 w3) {
    store_fragments(row, {w0, w1, w2, w3}, false);
}
void store_matrices_transposed(u32 row, u32 w0, u32 w1, u32 w2, u32 w3) {
    store_fragments(row, {w0, w1, w2, w3}, true);
}
void load_matrices(u32 row, u32 (&w)[4]) { load_fragments(row, w, false); }
void load_matrices_transposed(u32 row, u32 (&w)[4]) { load_fragments(row, w, true); }
void store_staged(u32 to, float value) { store_floats(to, &value, 1); }
void store_staged(u32 to, float first, float second) {
    const float both[] = {first, second};
    store_floats(to, both, 2);
}
void store_staged(u32 to, u16 value) {
    if (to % 2) fail("a store to an address that is not aligned");
    me().unfenced.push_back({to, value});
}
void sync_warp_stores() {
    async_fence();  // TMA is not asked for what these functions publish
    warp_meet();
}
void sync_stores(u32 name, u32 threads) {
    async_fence();
    named_sync(name, threads);
}
void store_shared(u32 to, u32 value) { memcpy(shared_at(here(), to), &value, 4); }
void store_shared_half(u32 to, u16 value) { memcpy(shared_at(here(), to), &value, 2); }
u32 load_shared(u32 from) {
    me().fenced = false;
    return read_as<u32>(shared_at(here(), from));
}
u16 load_shared_half(u32 from) { return read_as<u16>(shared_at(here(), from)); }
u32 load_shared_byte(u32 from) { return *shared_at(here(), from); }
void load_words(u32 from, u32& w0, u32& w1, u32& w2, u32& w3) {
    if (from % 16) fail("a load from an address that is not aligned");
    me().fenced = false;
    w0 = load_shared(from), w1 = load_shared(from + 4), w2 = load_shared(from + 8), w3 = load_shared(from + 12);
}

void store_float(u32 to, float value) { memcpy(shared_at(here(), to), &value, 4); }
float load_float(u32 from) {
    me().fenced = false;
    return read_as<float>(shared_at(here(), from));
}
void store_float(u32 to, u32 rank, float value) {
    Block& block = machine->blocks[me().block - cluster_rank() + rank];
    if (block.alive == 0) fail("a store to a block that has ended");
    memcpy(shared_at(block, to), &value, 4);
}
Float4 load_four(u32 from) {
    if (from % 16) fail("a load from an address that is not aligned");
    return read_as<Float4>(shared_at(here(), from));
}
void store_async(u32 to, Float4 value, u32 barrier) {
    Block& block = machine->blocks[me().block - cluster_rank() + (to >> 25)];
    if (to % 16) fail("a store to an address that is not aligned");
    if (block.alive == 0) fail("a store to a block that has ended");
    memcpy(shared_at(block, to % (1u << 25)), &value, 16);
    Barrier& sum = barrier_of(block, barrier % (1u << 25));
    sum.bytes -= 16;
    settle(sum);
    maybe_yield();
}
void load_shared_pair(u32 from, float (&to)[2]) {
    if (from % 8) fail("a load from an address that is not aligned");
    me().fenced = false;
    memcpy(to, shared_at(here(), from), 8);
}

void load_byte_if(const void* from, bool there, u32 (&to)[1]) {
    touch();
    to[0] = 0;
    if (there) memcpy(to, from, 1);
}
void load_half_if(const void* from, bool there, u32 (&to)[1]) {
    touch();
    to[0] = 0;
    if (there) memcpy(to, from, 2);
}
void copy_async(u32 to, const void* from, bool there) {
    touch();
    if (to % 16 || (there && reinterpret_cast<size_t>(from) % 16)) fail("an address that is not aligned");
    me().loads.add({to, there ? from : nullptr});
    maybe_yield();
}
void copy_word_async(u32 to, const void* from, bool there) {
    touch();
    if (to % 4 || (there && reinterpret_cast<size_t>(from) % 4)) fail("an address that is not aligned");
    me().loads.add({to, there ? from : nullptr, 4});
    maybe_yield();
}
void copy_commit() { me().loads.commit(); }

void store_word(void* to, u32 value) {
    touch();
    if (reinterpret_cast<size_t>(to) % 4) fail("an address that is not aligned");
    memcpy(to, &value, 4);
    maybe_yield();
}
void store_words(void* to, u32 w0, u32 w1, u32 w2, u32 w3) {
    touch();
    if (reinterpret_cast<size_t>(to) % 16) fail("an address that is not aligned");
    const u32 words[] = {w0, w1, w2, w3};
    memcpy(to, words, 16);
    maybe_yield();
}
void store_half(void* to, u16 value) {
    touch();
    memcpy(to, &value, 2);
}
void store_byte(void* to, u32 value) {
    touch();
    memset(to, static_cast<int>(value), 1);
}
u32 load_word(const u32* from) {
    touch();
    return *from;
}
