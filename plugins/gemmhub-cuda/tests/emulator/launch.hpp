// The state of a launch, for the files that make up the emulator; kernels see machine.hpp only.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "machine.hpp"
#include "simt/groups.hpp"

namespace emulator {

constexpr int NOBODY = -1, MANY = -2;

struct Block;

// When a thread did something: how many syncs of the block and of its warp it had passed.
struct Moment {
    int thread = NOBODY;
    u32 block_syncs = 0, warp_syncs = 0;
    Where where = {};
};

// Two bytes of shared memory: who touched them last. `reader.thread` is MANY for lanes of several warps; of several
// lanes of one warp it is the latest, with `lanes` set.
struct Cell {
    Moment writer, reader;
    bool lanes = false;
    bool pending = false;  // `writer` began a copy to it that it has not waited for
};

struct Range {
    u64 begin, end;
    bool writable;
};

// What a thread stored for other blocks: they may read it once it is fenced, and a thread that meets its barrier after
// that has counted up.
struct Part {
    u32 block, thread, block_syncs;
    bool fenced, released;
    Where where;
};

struct Copy {
    u32 to, bytes, valid;
    const void* from;
};

// An access that the lanes of a warp make together, each with an address of its own.
struct Request {
    Where where;
    u32 bytes;
    std::map<u32, u32> addresses;  // by lane
};

struct Fiber : simt::Thread {
    Block* block;
    u32 thread, block_syncs, warp_syncs;
    simt::Groups<Copy> copies;
    std::vector<std::pair<Float4*, Float4>> partials;  // not yet fenced, so not yet in memory
    std::map<std::pair<const char*, u32>, u32> ordinals;
};

struct Block {
    Index index;
    u32 number;  // of those that began
    u32 slot;    // its place among those that run at once
    std::vector<unsigned char> shared;
    std::vector<Cell> cells;
    simt::Meeting<Fiber> all;
    std::vector<simt::Warp<Fiber>> warps;
    std::vector<Fiber> fibers;
    std::vector<const Float4*> parts;  // that its threads stored
    u32 alive;
    std::map<std::tuple<u32, const char*, u32, u32>, Request> requests;
};

struct Machine : simt::Schedule<Fiber> {
    const void* params;
    u32 threads, shared;
    bool count;
    std::vector<Range> ranges;
    std::vector<Index> blocks;  // not yet begun
    u32 begun = 0;
    std::vector<std::unique_ptr<Block>> resident;  // by slot; null where none runs
    simt::Stacks stacks;
    std::mt19937_64 random;
    const Block* favourite = nullptr;
    u32 favourite_warp = 0;
    bool by_warp = false;
    std::vector<std::pair<Float4*, Float4>> late;  // partials that no thread fenced: they are seen after the launch
    std::unordered_map<const Float4*, Part> parts;
    Block* finished = nullptr;
    std::string error;
    std::map<std::string, std::pair<u64, u64>> conflicts;  // by line: requests, wavefronts beyond the least

    bool liked(const Fiber& f) const {
        return f.block == favourite && (!by_warp || f.thread / 32 == favourite_warp);
    }
    Fiber* choose() override;
};
extern Machine* machine;

inline Fiber& me() { return *machine->current; }
inline Block& here() { return *me().block; }

[[noreturn]] void fail(const std::string& what, Where where);

// Memory that a launch may reach.
u32 offset_of(u32 address, u32 bytes, Where where);
void read_cells(u32 offset, u32 bytes, Where where);
void check_meeting(const simt::Meeting<Fiber>& meeting, const simt::Place& place);

// Bank conflicts, where they are counted.
void note(u32 address, u32 bytes, Where where);
void count_request(Where where, const std::vector<u32>& addresses, u32 bytes);
void count_conflicts(const Block& block);

// A collective of the lanes of a warp that are there: `act` gets what each of them brings.
template <class Act>
void warp_meet(const char* what, Where where, void* brought, Act act) {
    const u32 thread = me().thread, warp = thread / 32;
    const simt::Place place = {what, where};
    check_meeting(here().warps[warp], place);
    machine->exchange(here().warps[warp], thread % 32, std::min(32u, machine->threads - 32 * warp), place, brought, act);
}

}  // namespace emulator
