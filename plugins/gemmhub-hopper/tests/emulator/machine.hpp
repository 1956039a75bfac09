// The emulated machine: what kernels on the host, by way of ptx.cuh, ask of it. machine.cpp is compiled once for all.
#pragma once
#include "standard.hpp"

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct alignas(64) TensorMap {
    unsigned char opaque[128];
};
struct Index {
    u32 x;
};
extern Index threadIdx, blockIdx, gridDim;

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
enum Kind { READY, BARRIER, NAMED, WARP, CLUSTER_SYNC, DONE };

// To whom a barrier's initialisation is known: to the thread that made it; to TMA as well, by a fence; to the threads of
// the block, and of the cluster, by a sync after that.
enum Known { MAKER, FENCED, IN_BLOCK, IN_CLUSTER };

struct Barrier {
    u32 expected, pending, maker;  // a fiber
    Known known = MAKER;
    u32 parity = 0;
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
    u32 fiber, group;
};
// 16 bytes that a thread copies to shared memory.
struct Load {
    u32 place;
    const void* from;  // null: zeros
    u32 group;
};
struct Block {
    std::vector<unsigned char> shared;
    std::map<u32, Barrier> barriers;
    Meeting named[16], warps[32];
    u32 lanes[32][32][5];
    u32 alive = 0;
    u32 gathered = 0;
};
struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    u32 block, thread;
    Kind waits = READY;
    u32 what = 0, until = 0;
    std::vector<Multiply> multiplies;
    u32 fragments[FRAGMENTS][4], fragment = 0;  // the last ones given to wgmma, as they were then; how many in all
    std::vector<Load> loads;
    u32 group = 0, store_group = 0, load_group = 0;
    // Whether wgmma may use registers: a fence came after they were last written, or exposed by a wait. How many groups
    // waits have exposed.
    bool fenced = false;
    u32 exposed = 0;
    std::vector<std::pair<u32, u16>> unfenced;
    bool waited = false;  // for the kernel before
};

struct Machine {
    std::vector<Block> blocks;
    std::vector<Fiber> fibers;
    std::vector<Copy> copies;
    std::vector<Meeting> clusters;
    std::mt19937_64 random;
    ucontext_t home;
    u32 current = 0, cluster = 1, threads = 0, full_at = 0;
    bool eager = false;
    std::string error;
    u64 switches = 0;
};

extern Machine* machine;

Fiber& me();
Block& here();
[[noreturn]] void fail(const std::string& what);
void pause(Kind kind, u32 what, u32 until);
void maybe_yield();
// Memory is about to be read or written: not while the kernel before may still do so.
void touch();
bool runnable(const Fiber& f);
void meet(Meeting& meeting, u32 all, Kind kind, u32 what);
void warp_meet();
Barrier& barrier_of(Block& block, u32 address);
// This thread has fenced the barriers that it made; is about to meet the threads of its block, or cluster.
void fence_barriers();
void publish_barriers(Known known);
void settle(Barrier& b);
void arrive(Block& block, u32 address, u32 bytes);
u32 swizzle_of(u32 address, u32 width);
unsigned char* shared_at(Block& block, u32 address);
u32 transfer(const Copy& copy, Block& block, bool load);
void perform(const Copy& copy);
void start(const TensorMap* map, u32 place, int x, int y, int z, u32 barrier, u32 blocks);
void finish_stores();
// All loads of the thread but those of its newest `open` groups; of a machine in a hurry all.
void finish_loads(u32 open);
float element(Block& block, u32 address, u32 swizzle, int input);
float element(const void* at, int input);
// The swizzle that a descriptor says, in bytes.
u32 swizzle_of(u64 d);
u32 operand_address(u64 d, bool mn, u32 i, u32 k, u32 size);
float added(const double* x, u32 count);
void perform(const Multiply& m);
void multiply(float* d, u32 n, u64 a, u64 b, bool a_mn, bool b_mn, int input, int accumulate);
void multiply(float* d, u32 n, const u32 (&a)[4], u64 b, bool b_mn, int input, int accumulate);
void finish_multiplies(u32 open);
void store_fragments(u32 row, const u32 (&words)[4], bool transposed);
void store_floats(u32 to, const float* values, u32 count);

// Runs `entry` as every thread of `grid` blocks, of which `first` is the number of the first one. `full_at`: where
// barriers begin in dynamic shared memory, for what is said of deadlocks.
void run(u32 grid, u32 first, u64 seed, u32 threads, u32 cluster, u32 full_at, void (*entry)());

}  // namespace emulator
