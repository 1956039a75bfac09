// Blocks of fibers, their shared memory, and the rules that are checked. Compiled once for all kernels.
#include "machine.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

Index threadIdx, blockIdx, blockDim, gridDim;
extern const u32 emulated_params_size;
void emulated_kernel(const void* params);

namespace emulator {
namespace {

constexpr size_t STACK = 1 << 17;
constexpr int NOBODY = -1, MANY = -2;

std::string text(Where where) {
    const std::string file = where.file ? where.file : "?";
    return file.substr(file.rfind('/') + 1) + ":" + std::to_string(where.line);
}

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
    u32 to, bytes, valid, group;
    const void* from;
};

// An access that the lanes of a warp make together, each with an address of its own.
struct Request {
    Where where;
    u32 bytes;
    std::map<u32, u32> addresses;  // by lane
};

struct Fiber {
    jmp_buf registers;
    ucontext_t start;
    std::unique_ptr<char[]> stack;
    Block* block;
    u32 thread;
    bool started;
    const char* waits;  // for what, for messages; null while it runs
    Where where;
    u32 block_syncs, warp_syncs, groups;
    std::vector<Copy> copies;
    std::vector<std::pair<Float4*, Float4>> partials;  // not yet fenced, so not yet in memory
    std::map<std::pair<const char*, int>, u32> ordinals;
};

// Where the lanes of a warp, or the threads of a block, wait for each other.
struct Meeting {
    u32 come = 0;
    const char* what = nullptr;
    Where where = {};
    std::vector<Fiber*> waiting;
    void* payload[32];
};

struct Block {
    Index index;
    u32 number;  // of those that began
    std::vector<unsigned char> shared;
    std::vector<Cell> cells;
    Meeting all;
    std::vector<Meeting> warps;
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<const Float4*> parts;  // that its threads stored
    u32 alive;
    std::map<std::tuple<u32, const char*, int, u32>, Request> requests;
};

struct Machine {
    const void* params;
    u32 threads, shared;
    bool count;
    std::vector<Range> ranges;
    std::vector<Index> blocks;  // not yet begun
    u32 begun = 0;
    std::vector<std::unique_ptr<Block>> resident;
    std::vector<std::unique_ptr<Fiber>> idle;  // for the next block: their stacks are used again
    std::vector<Fiber*> ready;
    std::mt19937_64 random;
    const Block* favourite = nullptr;
    u32 favourite_warp = 0;
    bool by_warp = false;
    std::vector<std::pair<Float4*, Float4>> late;  // partials that nobody fenced: they are seen after the launch
    std::unordered_map<const Float4*, Part> parts;
    jmp_buf home;
    Fiber* current = nullptr;
    Block* finished = nullptr;
    std::string error;
    std::map<std::string, std::pair<u64, u64>> conflicts;  // by line: requests, wavefronts beyond the least

    bool liked(const Fiber& f) const {
        return f.block == favourite && (!by_warp || f.thread / 32 == favourite_warp);
    }
};
Machine* machine;

Fiber& me() { return *machine->current; }
Block& here() { return *me().block; }

// --- switching ------------------------------------------------------------------------------------------------

[[noreturn]] void go_home() { _longjmp(machine->home, 1); }

[[noreturn]] void resume(Fiber& f) {
    machine->current = &f;
    threadIdx = {f.thread, 0, 0};
    blockIdx = f.block->index;
    f.waits = nullptr;
    if (f.started) _longjmp(f.registers, 1);
    f.started = true;
    setcontext(&f.start);
    abort();
}

// Any one that is ready; but those of one block, or of one warp, come before others for a while: it gets far ahead.
[[noreturn]] void next() {
    std::vector<Fiber*>& ready = machine->ready;
    if (ready.empty()) go_home();
    size_t i = machine->random() % ready.size();
    if (machine->random() % 256 == 0)
        machine->favourite = ready[i]->block, machine->favourite_warp = ready[i]->thread / 32;
    for (int tries = 0; tries < 8 && !machine->liked(*ready[i]); ++tries) i = machine->random() % ready.size();
    Fiber* f = ready[i];
    ready[i] = ready.back();
    ready.pop_back();
    resume(*f);
}

// Until somebody has put this fiber on the list of those that are ready.
__attribute__((noinline)) void wait(const char* what, Where where) {
    me().waits = what, me().where = where;
    if (_setjmp(me().registers) == 0) next();
}

[[noreturn]] void fail(const std::string& what, Where where) {
    const Index& b = here().index;
    machine->error = "block (" + std::to_string(b.x) + ", " + std::to_string(b.y) + ", " + std::to_string(b.z) +
                     ") thread " + std::to_string(me().thread) + " at " + text(where) + ": " + what;
    go_home();
}

// True in the last one to come, before the others go on: `all` threads meet, each with a payload.
template <class Act>
void meet(Meeting& m, u32 all, u32 place, const char* what, Where where, void* payload, Act act) {
    if (m.come == 0)
        m.what = what, m.where = where;
    else if (m.what != what || m.where.line != where.line)
        fail(std::string(what) + " here, while others are in " + m.what + " at " + text(m.where), where);
    if (payload) m.payload[place] = payload;
    if (++m.come < all) {
        m.waiting.push_back(&me());
        wait(what, where);
        return;
    }
    act();
    m.come = 0;
    for (Fiber* f : m.waiting) machine->ready.push_back(f);
    m.waiting.clear();
}

const char BLOCK_SYNC[] = "block_sync", WARP_SYNC[] = "warp_sync", MATRICES[] = "load_matrices", MMA[] = "multiply_add";

template <class Act>
void warp_meet(const char* what, Where where, void* payload, Act act) {
    const u32 warp = me().thread / 32;
    const u32 lanes = std::min(32u, machine->threads - 32 * warp);
    meet(here().warps[warp], lanes, me().thread % 32, what, where, payload, act);
}

// --- shared memory --------------------------------------------------------------------------------------------

Moment now(Where where) { return {int(me().thread), me().block_syncs, me().warp_syncs, where}; }

// Whether this thread may rely on what was done at `then` being over.
bool ordered(const Moment& then) {
    const Fiber& f = me();
    if (then.thread == NOBODY || then.thread == int(f.thread) || then.block_syncs < f.block_syncs) return true;
    return then.thread >= 0 && then.thread / 32 == int(f.thread) / 32 && then.warp_syncs < f.warp_syncs;
}

std::string by(const Moment& m) {
    return (m.thread == MANY ? "several threads" : "thread " + std::to_string(m.thread)) + " at " + text(m.where);
}

u32 offset_of(u32 address, u32 bytes, Where where) {
    if (address < WINDOW + 16 || address - WINDOW + bytes > machine->shared + 16)
        fail("shared address " + std::to_string(int(address - WINDOW - 16)) + " is out of the " +
                 std::to_string(machine->shared) + " bytes",
             where);
    if (address % bytes) fail("shared address is no multiple of " + std::to_string(bytes), where);
    return address - WINDOW;
}

void read_cells(u32 offset, u32 bytes, Where where) {
    for (u32 i = offset / 2; i < (offset + bytes) / 2; ++i) {
        Cell& c = here().cells[i];
        if (c.writer.thread == NOBODY) fail("reads shared memory that nobody wrote", where);
        if (c.pending) fail("reads what a copy of " + by(c.writer) + " may still be writing", where);
        if (!ordered(c.writer)) fail("reads what " + by(c.writer) + " wrote, with no barrier in between", where);
        Moment& r = c.reader;
        const Fiber& f = me();
        const bool earlier = r.thread == NOBODY || r.block_syncs < f.block_syncs;
        if (earlier || r.thread == int(f.thread)) {
            if (earlier) c.lanes = false;
            r = now(where);
        } else if (r.thread >= 0 && r.thread / 32 == int(f.thread) / 32) {
            c.lanes = true;
            r = now(where);
        } else {
            r = {MANY, f.block_syncs, 0, where};
        }
    }
}

void write_cells(u32 offset, u32 bytes, bool pending, Where where) {
    for (u32 i = offset / 2; i < (offset + bytes) / 2; ++i) {
        Cell& c = here().cells[i];
        if (c.pending) fail("writes where a copy of " + by(c.writer) + " may still land", where);
        if (!ordered(c.writer)) fail("writes where " + by(c.writer) + " wrote, with no barrier in between", where);
        const bool readers = c.lanes ? c.reader.block_syncs < me().block_syncs ||
                                           (c.reader.thread / 32 == int(me().thread) / 32 &&
                                            c.reader.warp_syncs < me().warp_syncs)
                                     : ordered(c.reader);
        if (!readers) fail("writes where " + by(c.reader) + " reads, with no barrier in between", where);
        c.writer = now(where), c.pending = pending;
        c.reader = {}, c.lanes = false;
    }
}

// Remembers an access, so that those of a warp's lanes can be put side by side at the end.
void note(u32 address, u32 bytes, Where where) {
    if (!machine->count) return;
    const u32 warp = me().thread / 32, ordinal = me().ordinals[{where.file, where.line}]++;
    Request& r = here().requests[{warp, where.file, where.line, ordinal}];
    r.where = where, r.bytes = bytes;
    r.addresses[me().thread % 32] = address;
}

// How often the banks must be read or written for accesses at once: a bank gives one word of 4 bytes a time.
u32 wavefronts(const std::vector<u32>& addresses, u32 bytes) {
    std::set<u32> words[32];
    for (u32 address : addresses)
        for (u32 w = address / 4; w < (address + bytes + 3) / 4; ++w) words[w % 32].insert(w);
    size_t most = 0;
    for (const std::set<u32>& bank : words) most = std::max(most, bank.size());
    return u32(most);
}

void count_request(Where where, const std::vector<u32>& addresses, u32 bytes) {
    auto& [requests, extra] = machine->conflicts[text(where)];
    ++requests, extra += wavefronts(addresses, bytes) - 1;
}

void count_conflicts(const Block& block) {
    for (const auto& [key, r] : block.requests) {
        // 16 bytes a lane: a quarter of the warp at a time; 8 bytes: half of it.
        const u32 together = r.bytes > 4 ? 128 / r.bytes : 32;
        std::map<u32, std::vector<u32>> turns;
        for (const auto& [lane, address] : r.addresses) turns[lane / together].push_back(address);
        for (const auto& [turn, addresses] : turns) count_request(r.where, addresses, r.bytes);
    }
}

// --- tensor cores ---------------------------------------------------------------------------------------------

struct Matrices {
    u32* word;
    u32 row;
};

void load_warp_matrices(void** payload, bool transposed, Where where) {
    u16 element[4][8][8];
    for (u32 q = 0; q < 4; ++q) {
        std::vector<u32> rows(8);
        for (u32 r = 0; r < 8; ++r) {
            rows[r] = static_cast<Matrices*>(payload[8 * q + r])->row;
            memcpy(element[q][r], &here().shared[rows[r] - WINDOW], 16);
        }
        if (machine->count) count_request(where, rows, 16);
    }
    for (u32 lane = 0; lane < 32; ++lane)
        for (u32 q = 0; q < 4; ++q) {
            const u32 i = lane / 4, j = 2 * (lane % 4);
            const u32 low = transposed ? element[q][j][i] : element[q][i][j];
            const u32 high = transposed ? element[q][j + 1][i] : element[q][i][j + 1];
            static_cast<Matrices*>(payload[lane])->word[q] = low | high << 16;
        }
}

struct Multiply {
    float* d;
    u32 a[4], b[2];
};

float* wide_table(int type) {
    static std::vector<float> tables[2];
    std::vector<float>& table = tables[type];
    if (table.empty()) {
        table.resize(65536);
        for (u32 bits = 0; bits < 65536; ++bits) {
            if (type == 0) {
                const u32 wide = bits << 16;
                memcpy(&table[bits], &wide, 4);
            } else {
                _Float16 half;
                memcpy(&half, &bits, 2);
                table[bits] = float(half);
            }
        }
    }
    return table.data();
}

void multiply_warp(void** payload, int type) {
    const float* wide = wide_table(type);
    float a[16][16], b[8][16];
    for (u32 lane = 0; lane < 32; ++lane) {
        const Multiply& m = *static_cast<Multiply*>(payload[lane]);
        const u32 g = lane / 4, t = 2 * (lane % 4);
        for (u32 e = 0; e < 2; ++e) {
            for (u32 i = 0; i < 4; ++i) a[g + 8 * (i % 2)][t + 8 * (i / 2) + e] = wide[m.a[i] >> (16 * e) & 0xffff];
            for (u32 i = 0; i < 2; ++i) b[g][t + 8 * i + e] = wide[m.b[i] >> (16 * e) & 0xffff];
        }
    }
    for (u32 lane = 0; lane < 32; ++lane) {
        float* d = static_cast<Multiply*>(payload[lane])->d;
        for (u32 i = 0; i < 4; ++i) {
            const float* row = a[lane / 4 + 8 * (i / 2)];
            const float* column = b[2 * (lane % 4) + i % 2];
            float sum = 0.0f;
            for (u32 k = 0; k < 16; ++k) sum += row[k] * column[k];
            d[i] += sum;
        }
    }
}

// --- a launch -------------------------------------------------------------------------------------------------

void land(const Copy& c) {
    unsigned char* to = &here().shared[c.to];
    memcpy(to, c.from, c.valid);
    memset(to + c.valid, 0, c.bytes - c.valid);
    for (u32 i = c.to / 2; i < (c.to + c.bytes) / 2; ++i) {
        Cell& cell = here().cells[i];
        cell.writer = now(cell.writer.where);
        cell.pending = false;
    }
}

void entry() {
    emulated_kernel(machine->params);
    Fiber& f = me();
    if (!f.copies.empty()) fail("ends with copies that it has not waited for", {});
    machine->late.insert(machine->late.end(), f.partials.begin(), f.partials.end());
    f.partials.clear();
    if (--f.block->alive == 0) {
        machine->finished = f.block;
        go_home();
    }
    f.waits = "its end";
    next();
}

__attribute__((noinline)) void begin(Index index) {
    auto block = std::make_unique<Block>();
    block->index = index, block->number = machine->begun++;
    block->shared.assign(machine->shared + 16, 0xff);  // NaN in every format
    block->cells.resize(machine->shared / 2 + 8);
    block->warps.resize((machine->threads + 31) / 32);
    block->alive = machine->threads;
    for (u32 i = 0; i < machine->threads; ++i) {
        std::unique_ptr<Fiber> f;
        if (machine->idle.empty()) {
            f = std::make_unique<Fiber>();
            f->stack.reset(new char[STACK]);
        } else {
            f = std::move(machine->idle.back());
            machine->idle.pop_back();
        }
        f->block = block.get(), f->thread = i, f->started = false, f->waits = nullptr;
        f->block_syncs = f->warp_syncs = f->groups = 0;
        f->ordinals.clear();
        getcontext(&f->start);
        f->start.uc_stack.ss_sp = f->stack.get();
        f->start.uc_stack.ss_size = STACK;
        f->start.uc_link = nullptr;
        makecontext(&f->start, entry, 0);
        machine->ready.push_back(f.get());
        block->fibers.push_back(std::move(f));
    }
    machine->resident.push_back(std::move(block));
}

void end(Block* block) {
    count_conflicts(*block);
    auto& resident = machine->resident;
    const auto found = std::find_if(resident.begin(), resident.end(), [&](auto& b) { return b.get() == block; });
    for (auto& f : block->fibers) machine->idle.push_back(std::move(f));
    resident.erase(found);
}

std::string stuck() {
    std::map<std::string, u32> places;
    for (const auto& block : machine->resident)
        for (const auto& f : block->fibers)
            ++places[f->waits ? std::string(f->waits) + (f->where.file ? " at " + text(f->where) : "") : "running"];
    std::string all = "deadlock:";
    for (const auto& [place, count] : places) all += " " + std::to_string(count) + " threads wait for " + place + ";";
    return all;
}

void run() {
    Machine& m = *machine;
    // In the order of a GPU, backwards, or in none.
    const u32 order = m.random() % 3;
    if (order == 0) std::reverse(m.blocks.begin(), m.blocks.end());
    if (order == 1) std::shuffle(m.blocks.begin(), m.blocks.end(), m.random);
    const size_t most = 1 + m.random() % 3;
    m.by_warp = m.random() % 2;
    // Fibers jump here when a block has ended, when none can run, and after an error.
    _setjmp(m.home);
    if (!m.error.empty()) return;
    if (m.finished) {
        end(m.finished);
        m.finished = nullptr;
    }
    while (m.resident.size() < most && !m.blocks.empty()) {
        const Index index = m.blocks.back();
        m.blocks.pop_back();
        begin(index);
    }
    if (m.resident.empty()) return;
    if (m.ready.empty()) {
        m.error = stuck();
        return;
    }
    next();
}

}  // namespace

void block_sync(Where where) {
    meet(here().all, machine->threads, 0, BLOCK_SYNC, where, nullptr, [] {});
    ++me().block_syncs;
}

void warp_sync(Where where) {
    warp_meet(WARP_SYNC, where, nullptr, [] {});
    ++me().warp_syncs;
}

void load_shared(void* value, u32 from, u32 bytes, Where where) {
    const u32 offset = offset_of(from, bytes, where);
    read_cells(offset, bytes, where);
    note(from, bytes, where);
    memcpy(value, &here().shared[offset], bytes);
}

void store_shared(u32 to, const void* value, u32 bytes, Where where) {
    const u32 offset = offset_of(to, bytes, where);
    write_cells(offset, bytes, false, where);
    note(to, bytes, where);
    memcpy(&here().shared[offset], value, bytes);
}

void copy_async(u32 to, const void* from, u32 bytes, u32 valid, Where where) {
    if (valid > bytes) fail("a copy of more bytes than it has", where);
    if (reinterpret_cast<u64>(from) % bytes) fail("a copy from an address that is not aligned", where);
    if (valid) check_global(from, valid, false, where);
    const u32 offset = offset_of(to, bytes, where);
    write_cells(offset, bytes, true, where);
    note(to, bytes, where);
    memset(&here().shared[offset], 0xff, bytes);
    me().copies.push_back({offset, bytes, valid, me().groups, from});
}

void copy_commit() { ++me().groups; }

void copy_wait(u32 open) {
    Fiber& f = me();
    size_t done = 0;
    while (done < f.copies.size() && f.copies[done].group + open < f.groups) land(f.copies[done++]);
    f.copies.erase(f.copies.begin(), f.copies.begin() + done);
    maybe_switch();
}

void load_matrices(u32* word, u32 row, bool transposed, Where where) {
    read_cells(offset_of(row, 16, where), 16, where);
    Matrices mine = {word, row};
    warp_meet(MATRICES, where, &mine,
              [&] { load_warp_matrices(here().warps[me().thread / 32].payload, transposed, where); });
}

void multiply_add(float* d, const u32* a, u32 b0, u32 b1, int type, Where where) {
    Multiply mine = {d, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    warp_meet(MMA, where, &mine, [&] { multiply_warp(here().warps[me().thread / 32].payload, type); });
}

void check_global(const void* address, u32 bytes, bool write, Where where) {
    const u64 at = reinterpret_cast<u64>(address);
    const u32 alignment = bytes & -bytes;
    if (at % alignment) fail("a global address that is no multiple of " + std::to_string(alignment), where);
    for (const Range& r : machine->ranges)
        if (at >= r.begin && at + bytes <= r.end && (r.writable || !write)) return;
    // The nearest buffer before it says most.
    const Range* before = nullptr;
    for (const Range& r : machine->ranges)
        if (r.begin <= at && (!before || r.begin > before->begin)) before = &r;
    fail(std::string(write ? "writes" : "reads") + " outside of the buffers" +
             (before ? ": " + std::to_string(at - before->begin) + " bytes from the start of one of " +
                           std::to_string(before->end - before->begin)
                     : ""),
         where);
}

void store_partial(Float4* to, Float4 value, Where where) {
    check_global(to, 16, true, where);
    me().partials.push_back({to, value});
    machine->parts[to] = {here().number, me().thread, 0, false, false, where};
    here().parts.push_back(to);
}

void device_fence() {
    maybe_switch();
    for (auto& [to, value] : me().partials) {
        *to = value;
        Part& part = machine->parts[to];
        part.fenced = true, part.block_syncs = me().block_syncs;
    }
    me().partials.clear();
    maybe_switch();
}

u32 count_up(u32* counter, Where where) {
    check_global(counter, 4, true, where);
    for (const Float4* at : here().parts) {
        Part& part = machine->parts[at];
        if (part.fenced && (part.thread == me().thread || part.block_syncs < me().block_syncs)) part.released = true;
    }
    const u32 old = (*counter)++;
    maybe_switch();
    return old;
}

Float4 load_partial(const Float4* from, Where where) {
    check_global(from, 16, false, where);
    const auto found = machine->parts.find(from);
    if (found == machine->parts.end()) fail("reads a part that nobody stored", where);
    const Part& part = found->second;
    if (!part.released && (part.block != here().number || part.thread != me().thread))
        fail("reads a part that thread " + std::to_string(part.thread) + " of its block stored at " + text(part.where) +
                 ": no fence and barrier were between that and counting up",
             where);
    return *from;
}

void maybe_switch() {
    if (machine->random() % 8) return;
    machine->ready.push_back(&me());
    wait("a turn", {});
}

}  // namespace emulator

// 0 when the launch ends as it should; else `message` says what happened. `ranges`: begin, end and writable, `count`
// times. With `report` not null the bank conflicts are counted, a line "place requests extra" each.
extern "C" int emulate(const void* params, u32 params_size, const u32* grid, u32 threads, u32 shared, const u64* ranges,
                       u32 count, u64 seed, char* message, char* report, u32 length) {
    using namespace emulator;
    Machine fresh;
    machine = &fresh;
    fresh.params = params, fresh.threads = threads, fresh.shared = shared, fresh.count = report != nullptr;
    fresh.random.seed(seed);
    for (u32 i = 0; i < count; ++i)
        fresh.ranges.push_back({ranges[3 * i], ranges[3 * i] + ranges[3 * i + 1], ranges[3 * i + 2] != 0});
    blockDim = {threads, 1, 1}, gridDim = {grid[0], grid[1], grid[2]};
    for (u32 z = 0; z < grid[2]; ++z)
        for (u32 y = 0; y < grid[1]; ++y)
            for (u32 x = 0; x < grid[0]; ++x) fresh.blocks.push_back({x, y, z});
    if (params_size != emulated_params_size)
        fresh.error = "params have " + std::to_string(params_size) + " bytes, the kernel's " +
                      std::to_string(emulated_params_size);
    else
        emulator::run();
    for (auto& [to, value] : fresh.late) *to = value;
    snprintf(message, length, "%s", fresh.error.c_str());
    if (report) {
        std::string all;
        for (const auto& [place, counts] : fresh.conflicts)
            all += place + " " + std::to_string(counts.first) + " " + std::to_string(counts.second) + "\n";
        snprintf(report, length, "%s", all.c_str());
    }
    machine = nullptr;
    return fresh.error.empty() ? 0 : 1;
}
