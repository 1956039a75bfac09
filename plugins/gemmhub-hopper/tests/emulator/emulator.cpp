// The kernel on the host: compiled with the variant's macros, this folder before gemmhub_hopper/kernels on the path.
#include "standard.hpp"

#include "gemm_kernel.cu"

namespace {

using namespace emulator;

struct Launch {
    const TensorMap *a, *b, *d;
    const Params* p;
} launch;

void entry() {
    gemm(*launch.a, *launch.b, *launch.d, *launch.p);
    Fiber& f = me();
    if (!f.multiplies.empty()) fail("ended with wgmmas that nobody waited for");
    if (!f.unfenced.empty()) fail("ended with stores that TMA was not told of");
    for (const Copy& c : machine->copies)
        if (!c.blocks && c.fiber == machine->current) fail("ended before its stores had read shared memory");
    --here().alive;
    f.waits = DONE;
    for (;;) swapcontext(&f.context, &machine->home);
}

std::string stuck() {
    static const char* names[] = {"ready", "barrier", "named sync", "warp", "cluster sync", "done"};
    std::map<std::string, int> where;
    for (const Fiber& f : machine->fibers)
        if (f.waits != DONE) {
            const u32 what = f.waits == BARRIER ? f.what - WINDOW - FULL_AT : f.what;
            ++where["block " + std::to_string(f.block) + " warpgroup " + std::to_string(f.thread / 128) + " at " +
                    names[f.waits] + " " + std::to_string(what) + " (" + std::to_string(f.until) + ")"];
        }
    std::string text = "deadlock:";
    for (const auto& [place, count] : where) text += " " + std::to_string(count) + " of " + place + ";";
    return text;
}

void run(u32 grid, u64 seed) {
    Machine& m = *machine;
    m.random.seed(seed);
    m.eager = m.random() % 4 == 0;
    // Steps from one copy to the next: copies happen soon after they were asked for, or when nothing else can.
    const u64 rest = u64(1) << (6 * (m.random() % 3));
    m.cluster = CLUSTER, m.threads = THREADS;
    m.blocks.resize(grid), m.clusters.resize(grid / CLUSTER);
    m.fibers.resize(grid * THREADS);
    gridDim.x = grid;
    for (u32 i = 0; i < m.fibers.size(); ++i) {
        Fiber& f = m.fibers[i];
        f.block = i / THREADS, f.thread = i % THREADS;
        f.stack.reset(new char[65536]);
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.get();
        f.context.uc_stack.ss_size = 65536;
        f.context.uc_link = nullptr;
        makecontext(&f.context, entry, 0);
    }
    for (emulator::Block& b : m.blocks) {
        b.alive = THREADS;
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
        threadIdx.x = f.thread, blockIdx.x = f.block;
        swapcontext(&m.home, &f.context);
        if (f.waits == DONE) {
            live[i] = live.back();
            live.pop_back();
        }
    }
    if (m.error.empty() && !m.copies.empty()) m.error = "TMA copies are left at the end";
    if (m.error.empty())
        for (const emulator::Block& b : m.blocks)
            for (const auto& [address, barrier] : b.barriers)
                if (barrier.bytes) m.error = "a barrier expects bytes that never come";
}

}  // namespace

// 0 when the launch ends as it should; else `message` says what happened.
extern "C" int emulate(const TensorMap* a, const TensorMap* b, const TensorMap* d, const Params* p, u32 grid, u64 seed,
                       char* message, u32 length) {
    Machine fresh;
    machine = &fresh;
    launch = {a, b, d, p};
    try {
        run(grid, seed);
    } catch (const std::exception& error) {
        fresh.error = error.what();
    }
    snprintf(message, length, "%s", fresh.error.c_str());
    machine = nullptr;
    return fresh.error.empty() ? 0 : 1;
}

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
