// The machine of ptx.cuh, and the driver's encoder of tensor maps.
#include "machine.hpp"

Index threadIdx, blockIdx, gridDim;

namespace emulator {

Machine* machine = nullptr;

Fiber& me() { return machine->fibers[machine->current]; }
Block& here() { return machine->blocks[me().block]; }

void fail(const std::string& what) {
    Fiber& f = me();
    if (machine->error.empty())
        machine->error = "block " + std::to_string(f.block) + " thread " + std::to_string(f.thread) + ": " + what;
    f.waits = DONE;
    for (;;) swapcontext(&f.context, &machine->home);
}

void pause(Kind kind, u32 what, u32 until) {
    Fiber& f = me();
    f.waits = kind, f.what = what, f.until = until;
    swapcontext(&f.context, &machine->home);
}

void maybe_yield() {
    if (machine->random() % 16 == 0) pause(READY, 0, 0);
}

bool runnable(const Fiber& f) {
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

void meet(Meeting& meeting, u32 all, Kind kind, u32 what) {
    const u32 generation = meeting.generation;
    if (++meeting.come == all) {
        meeting.come = 0;
        ++meeting.generation;
    } else {
        pause(kind, what, generation);
    }
}

void warp_meet() { meet(here().warps[me().thread / 32], 32, WARP, me().thread / 32); }

// `least`: what must be known of a barrier that this thread did not make, and in any case.
static Barrier& known_barrier(Block& block, u32 address, Known least) {
    auto found = block.barriers.find(address);
    if (found == block.barriers.end()) fail("no barrier at " + std::to_string(address));
    const bool others = found->second.maker != machine->current;
    const Known needed = !others ? least : &block == &here() ? IN_BLOCK : IN_CLUSTER;
    if (found->second.known < needed)
        fail("a barrier is used whose initialisation was not " +
             std::string(found->second.known == MAKER ? "fenced" : "followed by a sync of those that use it"));
    return found->second;
}

Barrier& barrier_of(Block& block, u32 address) { return known_barrier(block, address, MAKER); }

void fence_barriers() {
    for (auto& [address, barrier] : here().barriers)
        if (barrier.maker == machine->current) barrier.known = std::max(barrier.known, FENCED);
}

void publish_barriers(Known known) {
    for (auto& [address, barrier] : here().barriers)
        if (barrier.maker == machine->current && barrier.known >= FENCED) barrier.known = std::max(barrier.known, known);
}

void settle(Barrier& b) {
    if (b.pending == 0 && b.bytes == 0) {
        b.parity ^= 1;
        b.pending = b.expected;
    }
}

void arrive(Block& block, u32 address, u32 bytes) {
    if (block.alive == 0) fail("an arrival at a block that has ended");
    Barrier& b = barrier_of(block, address);
    if (b.pending == 0) fail("more arrivals than the barrier expects");
    b.bytes += bytes;
    --b.pending;
    settle(b);
}

u32 swizzle_of(u32 address, u32 width) { return address ^ ((address >> 3) & (width - 16) & 0x70); }

unsigned char* shared_at(Block& block, u32 address) {
    if (address < WINDOW || address >= WINDOW + SHARED) throw std::runtime_error("shared address out of range");
    return &block.shared[address - WINDOW];
}

// One box between global memory and the shared memory of one block. As seen on an H200, stores write whole units of 16
// bytes of a row, also the part of one that is outside of the tensor.
u32 transfer(const Copy& copy, Block& block, bool load) {
    const Map& m = copy.map;
    const u32 element = static_cast<u32>(m.stride[0]), width = m.box[0] * element;
    const long long written = (static_cast<long long>(m.size[0]) * element + 15) / 16 * 16 / element;
    for (u32 z = 0; z < m.box[2]; ++z)
        for (u32 y = 0; y < m.box[1]; ++y)
            for (u32 x = 0; x < m.box[0]; ++x) {
                const long long at[3] = {copy.at[0] + (long long)x, copy.at[1] + (long long)y, copy.at[2] + (long long)z};
                bool inside = true;
                for (int i = 0; i < 3; ++i)
                    inside = inside && at[i] >= 0 && at[i] < (i == 0 && !load ? written : static_cast<long long>(m.size[i]));
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

void perform(const Copy& copy) {
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

void touch() {
    if (!me().waited) fail("memory is used before the end of the kernel before is waited for");
}

void start(const TensorMap* map, u32 place, int x, int y, int z, u32 barrier, u32 blocks) {
    touch();
    Copy copy;
    memcpy(&copy.map, map, sizeof(Map));
    copy.place = place, copy.barrier = barrier, copy.blocks = blocks;
    copy.at[0] = x, copy.at[1] = y, copy.at[2] = z;
    copy.block = me().block, copy.fiber = machine->current, copy.group = me().store_group;
    for (u32 rank = 0; rank < machine->cluster; ++rank)
        if (blocks >> rank & 1)
            known_barrier(machine->blocks[me().block / machine->cluster * machine->cluster + rank], barrier, FENCED);
    const u32 alignment = copy.map.swizzle == 16 ? 128 : 8 * copy.map.swizzle;
    if (place % alignment) fail("a box at an address that is no multiple of " + std::to_string(alignment));
    machine->copies.push_back(copy);
    maybe_yield();
}

void finish_stores() {
    auto& copies = machine->copies;
    for (size_t i = 0; i < copies.size();) {
        const Copy& c = copies[i];
        if (!c.blocks && c.fiber == machine->current && c.group < me().store_group) {
            perform(c);
            copies.erase(copies.begin() + i);
        } else {
            ++i;
        }
    }
}

void finish_loads(u32 open) {
    Fiber& f = me();
    std::vector<Load> later;
    for (const Load& load : f.loads) {
        unsigned char* to = shared_at(here(), load.place);
        if (!machine->eager && load.group + open >= f.load_group)
            later.push_back(load);
        else if (load.from)
            memcpy(to, load.from, 16);
        else
            memset(to, 0, 16);
    }
    f.loads = later;
}

float element(Block& block, u32 address, u32 swizzle, int input) {
    return element(shared_at(block, swizzle_of(address, swizzle)), input);
}

float element(const void* at, int input) {
    if (input == 2) {
        float value;
        memcpy(&value, at, 4);
        return value;
    }
    u16 bits;
    memcpy(&bits, at, 2);
    float value;
    if (input != 1) {
        const u32 wide = u32(bits) << 16;
        memcpy(&value, &wide, 4);
    } else {
        _Float16 half;
        memcpy(&half, &bits, 2);
        value = float(half);
    }
    return value;
}

// The swizzle that the descriptor says, in bytes.
u32 swizzle_of(u64 d) { return 256 >> (d >> 62); }

// Address of element `i` along m (n) and `k` of one wgmma step, by the fields of the descriptor.
u32 operand_address(u64 d, bool mn, u32 i, u32 k, u32 size) {
    const u32 begin = (d & 0x3fff) << 4, leading = (d >> 16 & 0x3fff) << 4, stride = (d >> 32 & 0x3fff) << 4;
    // The field has 18 bits of the address; shared memory begins at a multiple of that.
    return WINDOW + (mn ? begin + i / 64 * leading + i % 64 * size + k / 8 * stride + k % 8 * 128
                        : begin + i / 8 * stride + i % 8 * swizzle_of(d) + k * size);
}

// As tensor cores add: all numbers aligned to the largest, with two bits more than float32 has, and what hangs over cut
// off; the sum truncated.
float added(const double* x, u32 count) {
    double largest = 0, plain = 0;
    for (u32 i = 0; i < count; ++i) plain += x[i], largest = std::max(largest, std::fabs(x[i]));
    if (!std::isfinite(plain) || largest == 0) return float(plain);
    u64 bits;
    memcpy(&bits, &largest, 8);
    const double unit = std::ldexp(1.0, int(bits >> 52) - 1023 - 25), inverse = 1 / unit;
    long long sum = 0;
    for (u32 i = 0; i < count; ++i) sum += (long long)(x[i] * inverse);
    const double exact = double(sum) * unit;
    const float rounded = float(exact);
    return std::fabs(rounded) > std::fabs(exact) && std::isfinite(rounded) ? std::nextafter(rounded, 0.0f) : rounded;
}

// Element (lane / 4 + 8 h, k) of a fragment: four lanes have those of a row.
float fragment_element(const Multiply& m, u32 h, u32 k) {
    const u32 wide = m.input == 2 ? 1 : 2;  // elements of a register
    const u32 lane = me().thread % 32, other = lane / 4 * 4 + k / wide % 4;
    const u32* registers = machine->fibers[machine->current - lane + other].fragments[m.number % FRAGMENTS];
    return element(reinterpret_cast<const u16*>(&registers[2 * (k / wide / 4) + h]) + k % wide, m.input);
}

void perform(const Multiply& m) {
    Block& block = here();
    const u32 t = me().thread % 128, size = m.input == 2 ? 4 : 2, depth = 32 / size;
    const u32 swizzle_a = swizzle_of(m.a), swizzle_b = swizzle_of(m.b);
    double column[16], rows[2][16];
    if (m.fragment && memcmp(m.fragment, me().fragments[m.number % FRAGMENTS], 16))
        fail("a fragment has changed before wgmma read it");
    for (u32 h = 0; h < 2; ++h)
        for (u32 k = 0; k < depth; ++k)
            rows[h][k] = m.fragment ? fragment_element(m, h, k)
                                    : element(block,
                                              operand_address(m.a, m.a_mn, 16 * (t / 32) + t % 32 / 4 + 8 * h, k, size),
                                              swizzle_a, m.input);
    for (u32 j = 0; j < m.n / 8; ++j)
        for (u32 e = 0; e < 2; ++e) {
            const u32 n = 8 * j + 2 * (t % 4) + e;
            for (u32 k = 0; k < depth; ++k)
                column[k] = element(block, operand_address(m.b, m.b_mn, n, k, size), swizzle_b, m.input);
            for (u32 h = 0; h < 2; ++h) {
                double addends[17];
                for (u32 k = 0; k < depth; ++k) addends[k] = rows[h][k] * column[k];
                addends[depth] = m.accumulate ? m.d[4 * j + 2 * h + e] : 0.0f;
                m.d[4 * j + 2 * h + e] = added(addends, depth + 1);
            }
        }
}

void multiply(float* d, u32 n, u64 a, u64 b, bool a_mn, bool b_mn, int input, int accumulate) {
    for (u64 x : {a, b})
        if ((x >> 62 != 1 && x >> 62 != 2) || (x >> 49 & 7)) fail("a descriptor without a swizzle of 128 or 64 bytes");
    if (!me().fenced) fail("wgmma without a fence since its registers were written, or exposed by a wait");
    me().multiplies.push_back({d, n, a, b, a_mn, b_mn, input, accumulate, me().group, nullptr, 0});
}

void multiply(float* d, u32 n, const u32 (&a)[4], u64 b, bool b_mn, int input, int accumulate) {
    multiply(d, n, b, b, false, b_mn, input, accumulate);
    Fiber& f = me();
    f.multiplies.back().fragment = a, f.multiplies.back().number = f.fragment;
    memcpy(f.fragments[f.fragment++ % FRAGMENTS], a, 16);
}

void finish_multiplies(u32 open) {
    Fiber& f = me();
    if (f.group > f.exposed + open) f.exposed = f.group - open, f.fenced = false;
    if (!f.multiplies.empty() && f.multiplies.back().fragment) warp_meet();  // all lanes have given theirs
    size_t done = 0;
    while (done < f.multiplies.size() && (machine->eager || f.multiplies[done].group + open < f.group))
        perform(f.multiplies[done++]);
    f.multiplies.erase(f.multiplies.begin(), f.multiplies.begin() + done);
}

void store_fragments(u32 row, const u32 (&words)[4], bool transposed) {
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
            if (base % 16 || base < WINDOW || base >= WINDOW + SHARED) fail("stmatrix to an address that is none");
            f.unfenced.push_back({base + 2 * c, u16(words[q] >> (16 * e))});
        }
    warp_meet();
}

void store_floats(u32 to, const float* values, u32 count) {
    if (to % (4 * count)) fail("a store to an address that is not aligned");
    u16 halves[4];
    memcpy(halves, values, 4 * count);
    for (u32 i = 0; i < 2 * count; ++i) me().unfenced.push_back({to + 2 * i, halves[i]});
    maybe_yield();
}

static std::string stuck() {
    static const char* names[] = {"ready", "barrier", "named sync", "warp", "cluster sync", "done"};
    std::map<std::string, int> where;
    for (const Fiber& f : machine->fibers)
        if (f.waits != DONE) {
            const u32 what = f.waits == BARRIER ? f.what - WINDOW - machine->full_at : f.what;
            ++where["block " + std::to_string(f.block) + " warpgroup " + std::to_string(f.thread / 128) + " at " +
                    names[f.waits] + " " + std::to_string(what) + " (" + std::to_string(f.until) + ")"];
        }
    std::string text = "deadlock:";
    for (const auto& [place, count] : where) text += " " + std::to_string(count) + " of " + place + ";";
    return text;
}

void run(u32 grid, u32 first, u64 seed, u32 threads, u32 cluster, u32 full_at, void (*entry)()) {
    Machine& m = *machine;
    m.random.seed(seed);
    m.eager = m.random() % 4 == 0;
    // Steps from one copy to the next: copies happen soon after they were asked for, or when nothing else can.
    const u64 rest = u64(1) << (6 * (m.random() % 3));
    m.cluster = cluster, m.threads = threads, m.full_at = full_at;
    m.blocks.resize(grid), m.clusters.resize(grid / cluster);
    m.fibers.resize(grid * threads);
    gridDim.x = grid;
    for (u32 i = 0; i < m.fibers.size(); ++i) {
        Fiber& f = m.fibers[i];
        f.block = i / threads, f.thread = i % threads;
        f.stack.reset(new char[65536]);
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.get();
        f.context.uc_stack.ss_size = 65536;
        f.context.uc_link = nullptr;
        makecontext(&f.context, entry, 0);
    }
    for (Block& b : m.blocks) {
        b.alive = threads;
        b.shared.assign(SHARED, 0xff);  // NaN in every format
    }
    std::vector<u32> live(m.fibers.size());
    for (u32 i = 0; i < live.size(); ++i) live[i] = i;
    while (!live.empty() && m.error.empty()) {
        if (!m.copies.empty() && m.random() % rest == 0) {
            const size_t i = m.random() % m.copies.size();
            const bool committed = m.copies[i].blocks || m.copies[i].group < m.fibers[m.copies[i].fiber].store_group;
            if (committed) {
                const Copy copy = m.copies[i];
                m.copies.erase(m.copies.begin() + i);
                perform(copy);
            }
        }
        size_t tried = 0, i = m.random() % live.size();
        for (; tried < live.size() && !runnable(m.fibers[live[i]]); ++tried) i = i + 1 == live.size() ? 0 : i + 1;
        if (tried == live.size()) {
            if (m.copies.empty()) {
                m.error = stuck();
                return;
            }
            const size_t c = m.random() % m.copies.size();
            const Copy copy = m.copies[c];
            m.copies.erase(m.copies.begin() + c);
            perform(copy);
            continue;
        }
        m.current = live[i];
        Fiber& f = m.fibers[m.current];
        f.waits = READY;
        threadIdx.x = f.thread, blockIdx.x = first + f.block;
        swapcontext(&m.home, &f.context);
        if (f.waits == DONE) {
            live[i] = live.back();
            live.pop_back();
        }
    }
    if (m.error.empty() && !m.copies.empty()) m.error = "TMA copies are left at the end";
    if (m.error.empty())
        for (const Block& b : m.blocks)
            for (const auto& [address, barrier] : b.barriers)
                if (barrier.bytes) m.error = "a barrier expects bytes that never come";
}

}  // namespace emulator

using namespace emulator;

// cuTensorMapEncodeTiled, with its rules; for three dimensions, as the plugin has them.
extern "C" int encode(TensorMap* map, int kind, u32 rank, void* address, const u64* size, const u64* stride,
                      const u32* box, const u32* step, int interleave, int swizzle, int promotion, int fill) {
    constexpr int INVALID = 1;
    if (kind != 6 && kind != 7 && kind != 9 && kind != 11) return INVALID;
    const u32 element = kind == 6 || kind == 9 ? 2 : 4;
    const u32 widths[] = {16, 32, 64, 128};
    if (rank != 3 || interleave || fill || swizzle < 0 || swizzle > 3 || promotion < 0 || promotion > 3) return INVALID;
    if (reinterpret_cast<u64>(map) % 64 || reinterpret_cast<u64>(address) % 16 || !address) return INVALID;
    Map m = {};
    m.address = reinterpret_cast<u64>(address), m.stride[0] = element, m.swizzle = widths[swizzle], m.kind = kind;
    for (u32 i = 0; i < 3; ++i) {
        if (size[i] < 1 || size[i] > 1ull << 32 || box[i] < 1 || box[i] > 256 || step[i] != 1) return INVALID;
        m.size[i] = u32(size[i]), m.box[i] = box[i];
        if (i < 2) {
            if (stride[i] % 16 || stride[i] >= 1ull << 40) return INVALID;
            m.stride[i + 1] = stride[i];
        }
    }
    if (box[0] * element % 16 || (swizzle && box[0] * element > m.swizzle)) return INVALID;
    memset(map, 0, sizeof(TensorMap));
    memcpy(map, &m, sizeof(m));
    return 0;
}
