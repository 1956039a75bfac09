// The state of a launch, for the files that make up the emulator; kernels see machine.hpp only.
#pragma once
#include <algorithm>
#include <random>
#include <unordered_map>

#include "machine.hpp"
#include "simt/groups.hpp"
#include "simt/schedule.hpp"

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
constexpr u32 FRAGMENTS = 64;  // more than a warp's wgmmas may be late

// To whom a barrier's initialisation is known: to the thread that made it; to TMA as well, by a fence; to the threads of
// the block, and of the cluster, by a sync after that.
enum Known { MAKER, FENCED, IN_BLOCK, IN_CLUSTER };

constexpr char BARRIER[] = "barrier";  // what a thread waits for, in messages

struct Fiber;
using Meeting = simt::Meeting<Fiber>;

struct Barrier {
    u32 expected, pending;
    const Fiber* maker;
    Known known = MAKER;
    u32 parity = 0;
    long long bytes = 0;
    Meeting phase = {};  // those that wait for its end
};
struct Multiply {
    void* d;  // float32 sums, of int8 int32 ones
    u32 n;
    u64 a, b;
    bool a_mn, b_mn;
    int input, accumulate;
    const u32* fragment;  // this thread's registers in place of a, unless null
    u32 number;           // of the fragment
};
struct Copy {
    Map map;
    u32 place;
    int at[3];
    u32 barrier;
    u32 blocks;  // a bit for each rank; 0: a store
    u32 block;   // number in the grid
    const Fiber* fiber;
    u32 group;
};
// 16 bytes that a thread copies to shared memory.
struct Load {
    u32 place;
    const void* from;  // null: zeros
    u32 bytes = 16;
};
// A quad of partial sums in global memory: who stored it, and the number of the release that made it known; 0: none has.
struct Partial {
    const Fiber* writer;
    u64 released;
};
// What the threads of a warpgroup have for each other: partial sums that are fenced, and the last release that one of
// them has observed.
struct Warpgroup {
    std::vector<const Float4*> met;
    u64 observed = 0;
};
struct Block {
    std::vector<unsigned char> shared;
    std::map<u32, Barrier> barriers;
    Meeting named[16];
    Warpgroup warpgroups[8];
    simt::Warp<Fiber> warps[32];
    u32 alive = 0;
    u32 gathered = 0, all = 0;  // of block_or: the bits so far, and those of the last one
};
struct Fiber : simt::Thread {
    u32 block, thread;
    u32 number = 0, parity = 0;  // of what it waits for, for messages
    simt::Groups<Multiply> multiplies;
    u32 fragments[FRAGMENTS][4], fragment = 0;  // the last ones given to wgmma, as they were then; how many in all
    simt::Groups<Load> loads;
    u32 store_group = 0;
    std::vector<const Float4*> stored_partials, fenced_partials;
    u64 known = 0, acquired = 0;                // the last release that its warpgroup told it of; whose stores it may load
    // Whether wgmma may use registers: a fence came after they were last written, or exposed by a wait. How many groups
    // waits have exposed.
    bool fenced = false;
    u32 exposed = 0;
    std::vector<std::pair<u32, u16>> unfenced;
    bool waited = false;  // for the kernel before
};

struct Machine : simt::Schedule<Fiber> {
    std::vector<Block> blocks;
    std::vector<Fiber> fibers;
    std::vector<Copy> copies;
    std::vector<Meeting> clusters;
    std::unordered_map<const Float4*, Partial> partials;
    u64 releases = 0;
    std::mt19937_64 random;
    u32 cluster = 1, threads = 0;
    u32 first = 0;    // number of the first block
    u32 full_at = 0;  // where barriers begin in dynamic shared memory
    u32 alive = 0;    // threads
    u64 rest = 1;     // steps from one copy to the next
    bool eager = false;
    std::string error;

    Fiber* choose() override;
};

extern Machine* machine;

inline Fiber& me() { return *machine->current; }
inline Block& here() { return machine->blocks[me().block]; }
// Ends the launch, with that message; `fail` names the thread.
[[noreturn]] void stop(const std::string& what);
[[noreturn]] void fail(const std::string& what);

// `number` and `parity`: of what is waited for.
void meet(Meeting& meeting, u32 all, const char* what, u32 number);
void warp_meet();
// `act` gets what the 32 lanes bring.
template <class Act>
void exchange(void* brought, Act act) {
    const u32 thread = me().thread;
    me().number = thread / 32;
    machine->exchange(here().warps[thread / 32], thread % 32, 32, {"warp"}, brought, act);
}
void maybe_yield();
// Around a named barrier (global.cpp): this thread gives its warpgroup what it has fenced, and learns what that has observed.
void join_warpgroup();
void learn_of_warpgroup();
// Memory is about to be read or written: not while the kernel before may still do so.
void touch();

Barrier& barrier_of(Block& block, u32 address, Known least = MAKER);
// This thread has fenced the barriers that it made; is about to meet the threads of its block, or cluster.
void fence_barriers();
void publish_barriers(Known known);
void settle(Barrier& b);
void arrive(Block& block, u32 address, u32 bytes);
void wait_for(u32 address, u32 parity);

inline unsigned char* shared_at(Block& block, u32 address) {
    if (address < WINDOW || address >= WINDOW + SHARED) stop("shared address out of range");
    return &block.shared[address - WINDOW];
}
inline u32 swizzle_of(u32 address, u32 width) { return address ^ ((address >> 3) & (width - 16) & 0x70); }
void store_fragments(u32 row, const u32 (&words)[4], bool transposed);
void load_fragments(u32 row, u32 (&words)[4], bool transposed);
void store_floats(u32 to, const float* values, u32 count);

// Performs one copy that has begun.
void perform_copy(size_t index);
void start(const TensorMap* map, u32 place, int x, int y, int z, u32 barrier, u32 blocks);
void finish_stores();

}  // namespace emulator
