// In place of gemmhub_hopper/kernels/ptx.cuh: the same functions for a host compiler.
//
// Threads of a launch are fibers that switch at random where they wait. What Hopper does asynchronously happens at a
// random later moment, or at the last one that its rules allow: TMA's loads and stores, the reads of wgmma. What is
// written by ordinary stores is seen by TMA after the fence only. So a missing wait, a wrong count or address shows
// as a wrong number, an error or a deadlock.
#pragma once
#include "standard.hpp"

#define __CUDACC_VER_MAJOR__ 13

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

#define GLOBAL_KERNEL extern "C"
#define DEVICE inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__

struct alignas(64) TensorMap {
    unsigned char opaque[128];
};
struct alignas(16) Float4 {
    float x, y, z, w;
};
struct Params;

struct Index {
    u32 x;
};
inline Index threadIdx, blockIdx, gridDim;

namespace emulator {

// What the emulated cuTensorMapEncodeTiled writes.
struct Map {
    u64 address;
    u32 size[3], box[3];
    u64 stride[3];  // bytes; stride[0] is the element's
    u32 swizzle;    // bytes; 16 for none
    u32 kind;
};
static_assert(sizeof(Map) <= sizeof(TensorMap));

constexpr u32 SHARED = 232448, WINDOW = 1u << 24;
enum Kind { READY, BARRIER, NAMED, WARP, CLUSTER_SYNC, DONE };

struct Barrier {
    u32 expected, pending, parity = 0;
    long long bytes = 0;
};
struct Meeting {
    u32 come = 0, generation = 0;
};
struct Multiply {
    float* d;
    u32 n;
    u64 a, b;
    bool a_mn, b_mn;
    int input, accumulate;
    u32 group;
};
struct Copy {
    Map map;
    u32 place;
    int at[3];
    u32 barrier;
    u32 blocks;  // a bit for each rank; 0: a store
    u32 block;   // number in the grid
    u32 fiber, group;
};
struct Block {
    std::vector<unsigned char> shared;
    std::map<u32, Barrier> barriers;
    Meeting named[16], warps[32];
    u32 lanes[32][32][5];
    u32 alive = 0;
};
struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    u32 block, thread;
    Kind waits = READY;
    u32 what = 0, until = 0;
    std::vector<Multiply> multiplies;
    u32 group = 0, store_group = 0;
    std::vector<std::pair<u32, u16>> unfenced;
};

struct Machine {
    std::vector<Block> blocks;
    std::vector<Fiber> fibers;
    std::vector<Copy> copies;
    std::vector<Meeting> clusters;
    std::mt19937_64 random;
    ucontext_t home;
    u32 current = 0, cluster = 1, threads = 0;
    bool eager = false;
    std::string error;
    u64 switches = 0;
};
inline Machine* machine = nullptr;

inline Fiber& me() { return machine->fibers[machine->current]; }
inline Block& here() { return machine->blocks[me().block]; }

[[noreturn]] inline void fail(const std::string& what) {
    Fiber& f = me();
    if (machine->error.empty())
        machine->error = "block " + std::to_string(f.block) + " thread " + std::to_string(f.thread) + ": " + what;
    f.waits = DONE;
    for (;;) swapcontext(&f.context, &machine->home);
}

inline void pause(Kind kind, u32 what, u32 until) {
    Fiber& f = me();
    f.waits = kind, f.what = what, f.until = until;
    swapcontext(&f.context, &machine->home);
}

inline void maybe_yield() {
    if (machine->random() % 16 == 0) pause(READY, 0, 0);
}

inline bool runnable(const Fiber& f) {
    const Block& b = machine->blocks[f.block];
    switch (f.waits) {
        case READY: return true;
        case BARRIER: return b.barriers.at(f.what).parity != f.until;
        case NAMED: return b.named[f.what].generation != f.until;
        case WARP: return b.warps[f.what].generation != f.until;
        case CLUSTER_SYNC: return machine->clusters[f.what].generation != f.until;
        default: return false;
    }
}

inline void meet(Meeting& meeting, u32 all, Kind kind, u32 what) {
    const u32 generation = meeting.generation;
    if (++meeting.come == all) {
        meeting.come = 0;
        ++meeting.generation;
    } else {
        pause(kind, what, generation);
    }
}

inline void warp_meet() { meet(here().warps[me().thread / 32], 32, WARP, me().thread / 32); }

inline Barrier& barrier_of(Block& block, u32 address) {
    auto found = block.barriers.find(address);
    if (found == block.barriers.end()) fail("no barrier at " + std::to_string(address));
    return found->second;
}

inline void settle(Barrier& b) {
    if (b.pending == 0 && b.bytes == 0) {
        b.parity ^= 1;
        b.pending = b.expected;
    }
}

inline void arrive(Block& block, u32 address, u32 bytes) {
    if (block.alive == 0) fail("an arrival at a block that has ended");
    Barrier& b = barrier_of(block, address);
    if (b.pending == 0) fail("more arrivals than the barrier expects");
    b.bytes += bytes;
    --b.pending;
    settle(b);
}

inline u32 swizzle_of(u32 address, u32 width) { return address ^ ((address >> 3) & (width - 16) & 0x70); }

inline unsigned char* shared_at(Block& block, u32 address) {
    if (address < WINDOW || address >= WINDOW + SHARED) throw std::runtime_error("shared address out of range");
    return &block.shared[address - WINDOW];
}

// One box between global memory and the shared memory of one block.
inline u32 transfer(const Copy& copy, Block& block, bool load) {
    const Map& m = copy.map;
    const u32 element = static_cast<u32>(m.stride[0]), width = m.box[0] * element;
    for (u32 z = 0; z < m.box[2]; ++z)
        for (u32 y = 0; y < m.box[1]; ++y)
            for (u32 x = 0; x < m.box[0]; ++x) {
                const long long at[3] = {copy.at[0] + (long long)x, copy.at[1] + (long long)y, copy.at[2] + (long long)z};
                bool inside = true;
                for (int i = 0; i < 3; ++i) inside = inside && at[i] >= 0 && at[i] < m.size[i];
                auto* global = reinterpret_cast<unsigned char*>(m.address) + at[0] * element + at[1] * m.stride[1] +
                               at[2] * m.stride[2];
                const u32 offset = (z * m.box[1] + y) * width + x * element;
                unsigned char* shared = shared_at(block, swizzle_of(copy.place + offset, m.swizzle));
                if (load) {
                    if (inside)
                        memcpy(shared, global, element);
                    else
                        memset(shared, 0, element);
                } else if (inside) {
                    memcpy(global, shared, element);
                }
            }
    return width * m.box[1] * m.box[2];
}

inline void perform(const Copy& copy) {
    if (!copy.blocks) {
        transfer(copy, machine->blocks[copy.block], false);
        return;
    }
    const u32 first = copy.block / machine->cluster * machine->cluster;
    for (u32 rank = 0; rank < machine->cluster; ++rank)
        if (copy.blocks >> rank & 1) {
            Block& block = machine->blocks[first + rank];
            if (block.alive == 0) throw std::runtime_error("TMA writes to a block that has ended");
            Barrier& b = block.barriers.at(copy.barrier);
            b.bytes -= transfer(copy, block, true);
            settle(b);
        }
}

inline void start(const TensorMap* map, u32 place, int x, int y, int z, u32 barrier, u32 blocks) {
    Copy copy;
    memcpy(&copy.map, map, sizeof(Map));
    copy.place = place, copy.barrier = barrier, copy.blocks = blocks;
    copy.at[0] = x, copy.at[1] = y, copy.at[2] = z;
    copy.block = me().block, copy.fiber = machine->current, copy.group = me().store_group;
    const u32 alignment = copy.map.swizzle == 16 ? 128 : 8 * copy.map.swizzle;
    if (place % alignment) fail("a box at an address that is no multiple of " + std::to_string(alignment));
    machine->copies.push_back(copy);
    maybe_yield();
}

inline void finish_stores(u32 open) {
    auto& copies = machine->copies;
    for (size_t i = 0; i < copies.size();) {
        const Copy& c = copies[i];
        if (!c.blocks && c.fiber == machine->current && c.group + open < me().store_group) {
            perform(c);
            copies.erase(copies.begin() + i);
        } else {
            ++i;
        }
    }
}

inline float element(Block& block, u32 address, int input) {
    const unsigned char* at = shared_at(block, swizzle_of(address, 128));
    if (input == 2) {
        float value;
        memcpy(&value, at, 4);
        return value;
    }
    u16 bits;
    memcpy(&bits, at, 2);
    float value;
    if (input == 0) {
        const u32 wide = u32(bits) << 16;
        memcpy(&value, &wide, 4);
    } else {
        _Float16 half;
        memcpy(&half, &bits, 2);
        value = float(half);
    }
    return value;
}

// Address of element `i` along m (n) and `k` of one wgmma step, by the fields of the descriptor.
inline u32 operand_address(u64 d, bool mn, u32 i, u32 k, u32 size) {
    const u32 begin = (d & 0x3fff) << 4, leading = (d >> 16 & 0x3fff) << 4, stride = (d >> 32 & 0x3fff) << 4;
    // The field has 18 bits of the address; shared memory begins at a multiple of that.
    return WINDOW + (mn ? begin + i / 64 * leading + i % 64 * size + k / 8 * stride + k % 8 * 128
                        : begin + i / 8 * stride + i % 8 * 128 + k * size);
}

inline void perform(const Multiply& m) {
    Block& block = here();
    const u32 t = me().thread % 128, size = m.input == 2 ? 4 : 2, depth = 32 / size;
    std::vector<float> column(depth);
    float rows[2][16];
    for (u32 h = 0; h < 2; ++h)
        for (u32 k = 0; k < depth; ++k)
            rows[h][k] = element(block, operand_address(m.a, m.a_mn, 16 * (t / 32) + t % 32 / 4 + 8 * h, k, size), m.input);
    for (u32 j = 0; j < m.n / 8; ++j)
        for (u32 e = 0; e < 2; ++e) {
            const u32 n = 8 * j + 2 * (t % 4) + e;
            for (u32 k = 0; k < depth; ++k)
                column[k] = element(block, operand_address(m.b, m.b_mn, n, k, size), m.input);
            for (u32 h = 0; h < 2; ++h) {
                float sum = m.accumulate ? m.d[4 * j + 2 * h + e] : 0.0f;
                for (u32 k = 0; k < depth; ++k) sum += rows[h][k] * column[k];
                m.d[4 * j + 2 * h + e] = sum;
            }
        }
}

inline void multiply(float* d, u32 n, u64 a, u64 b, bool a_mn, bool b_mn, int input, int accumulate) {
    for (u64 x : {a, b})
        if (x >> 62 != 1 || (x >> 49 & 7)) fail("a descriptor without the 128-byte swizzle");
    me().multiplies.push_back({d, n, a, b, a_mn, b_mn, input, accumulate, me().group});
}

inline void finish_multiplies(u32 open) {
    Fiber& f = me();
    size_t done = 0;
    while (done < f.multiplies.size() && (machine->eager || f.multiplies[done].group + open < f.group))
        perform(f.multiplies[done++]);
    f.multiplies.erase(f.multiplies.begin(), f.multiplies.begin() + done);
}

inline void store_fragments(u32 row, const u32 (&words)[4], bool transposed) {
    Fiber& f = me();
    const u32 warp = f.thread / 32, lane = f.thread % 32;
    auto& lanes = here().lanes[warp];
    lanes[lane][4] = row;
    warp_meet();
    for (u32 q = 0; q < 4; ++q)
        for (u32 e = 0; e < 2; ++e) {
            const u32 i = lane / 4, j = 2 * (lane % 4) + e;
            const u32 r = transposed ? j : i, c = transposed ? i : j;
            const u32 base = lanes[8 * q + r][4];
            if (base % 16) fail("stmatrix to an address that is no multiple of 16");
            f.unfenced.push_back({base + 2 * c, u16(words[q] >> (16 * e))});
        }
    warp_meet();
}

}  // namespace emulator

inline u32 lane_id() { return threadIdx.x % 32; }
inline u32 warp_id() { return threadIdx.x / 32; }
inline u32 cluster_rank() { return emulator::me().block % emulator::machine->cluster; }
inline u32 dynamic_shared() { return emulator::WINDOW + 16; }  // as badly aligned as may be

inline void barrier_init(u32 barrier, u32 arrivals) {
    if (barrier % 8) emulator::fail("a barrier that is not aligned");
    emulator::here().barriers[barrier] = {arrivals, arrivals};
}
inline void barrier_init_fence() {}
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
inline void barrier_wait_cluster(u32 barrier, u32 parity) { barrier_wait(barrier, parity); }
inline void named_sync(u32 name, u32 threads) {
    emulator::meet(emulator::here().named[name], threads, emulator::NAMED, name);
}
inline void block_sync() { named_sync(0, emulator::machine->threads); }
inline void cluster_sync() {
    const u32 number = emulator::me().block / emulator::machine->cluster;
    emulator::meet(emulator::machine->clusters[number], emulator::machine->threads * emulator::machine->cluster,
                   emulator::CLUSTER_SYNC, number);
}

inline void prefetch_map(const TensorMap*) {}
inline void tma_load(u32 to, const TensorMap* map, int x, int y, int z, u32 barrier) {
    emulator::start(map, to, x, y, z, barrier, 1u << cluster_rank());
}
inline void tma_load_multicast(u32 to, const TensorMap* map, int x, int y, int z, u32 barrier, u16 blocks) {
    emulator::start(map, to, x, y, z, barrier, blocks);
}
inline void tma_store(const TensorMap* map, u32 from, int x, int y, int z) {
    emulator::start(map, from, x, y, z, 0, 0);
}
inline void tma_store_commit() { ++emulator::me().store_group; }
template <int open>
inline void tma_store_wait_read() {
    emulator::finish_stores(open);
}
inline void tma_store_wait_all() { emulator::finish_stores(0); }
inline void async_fence() {
    auto& f = emulator::me();
    for (auto& [address, bits] : f.unfenced) memcpy(emulator::shared_at(emulator::here(), address), &bits, 2);
    f.unfenced.clear();
}

inline void wgmma_fence() {}
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
inline void give_registers() {}
template <int count>
inline void take_registers() {}

inline void store_matrices(u32 row, u32 w0, u32 w1, u32 w2, u32 w3) {
    emulator::store_fragments(row, {w0, w1, w2, w3}, false);
}
inline void store_matrices_transposed(u32 row, u32 w0, u32 w1, u32 w2, u32 w3) {
    emulator::store_fragments(row, {w0, w1, w2, w3}, true);
}
inline void store_shared(u32 to, u32 value) { memcpy(emulator::shared_at(emulator::here(), to), &value, 4); }
inline u32 load_shared(u32 from) {
    u32 value;
    memcpy(&value, emulator::shared_at(emulator::here(), from), 4);
    return value;
}

inline void store_partial(Float4* to, Float4 value) { *to = value; }
inline Float4 load_partial(const Float4* from) { return *from; }
inline void device_fence() { emulator::maybe_yield(); }
inline u32 count_up(u32* counter) { return (*counter)++; }

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
