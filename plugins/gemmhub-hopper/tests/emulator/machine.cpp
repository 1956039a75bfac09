// Turns and failures of a launch: blocks of fibers that switch at random where they wait.
#include "launch.hpp"

Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

Machine* machine = nullptr;

void stop(const std::string& what) {
    if (machine->error.empty()) machine->error = what;
    machine->stop();
}

void fail(const std::string& what) {
    stop("block " + std::to_string(me().block) + " thread " + std::to_string(me().thread) + ": " + what);
}

void touch() {
    if (!me().waited) fail("memory is used before the end of the kernel before is waited for");
}

void maybe_yield() {
    if (machine->random() % 16 == 0) machine->yield();
}

void meet(Meeting& meeting, u32 all, const char* what, u32 number) {
    me().number = number;
    machine->meet(meeting, all, {what}, [] {});
}

void warp_meet() {
    exchange(nullptr, [](void**) {});
}

static std::string stuck() {
    std::vector<Fiber*> all;
    for (Fiber& f : machine->fibers) all.push_back(&f);
    return simt::deadlock(all, [](const Fiber& f) {
        const bool barrier = simt::same_text(f.waits.what, BARRIER);
        const u32 number = barrier ? f.number - WINDOW - machine->full_at : f.number;
        return f.waits.what + (" " + std::to_string(number)) +
               (barrier ? " (parity " + std::to_string(f.parity) + ")" : "") + " in block " + std::to_string(f.block) +
               " warpgroup " + std::to_string(f.thread / 128);
    });
}

// Copies happen soon after they were asked for, or when nothing else can.
Fiber* Machine::choose() {
    if (!alive) return nullptr;
    if (!copies.empty() && random() % rest == 0) {
        const size_t i = random() % copies.size();
        if (copies[i].blocks || copies[i].group < copies[i].fiber->store_group) perform_copy(i);
    }
    while (ready.empty() && !copies.empty()) perform_copy(random() % copies.size());
    if (ready.empty()) {
        error = stuck();
        return nullptr;
    }
    Fiber* next = take(random() % ready.size());
    threadIdx.x = next->thread, blockIdx.x = first + next->block;
    return next;
}

void leave() {
    Fiber& f = me();
    if (!f.multiplies.empty()) fail("ended with wgmmas that nobody waited for");
    if (!f.unfenced.empty()) fail("ended with stores that TMA was not told of");
    for (const Copy& c : machine->copies)
        if (!c.blocks && c.fiber == machine->current) fail("ended before its stores had read shared memory");
    --here().alive, --machine->alive;
    machine->leave();
}

// Runs every thread of `grid` blocks, of which `first` is the number of the first one.
static void run(simt::Stacks& stacks, const Kernel& kernel, u32 grid, u32 first, u64 seed) {
    Machine& m = *machine;
    m.random.seed(seed);
    m.eager = m.random() % 4 == 0;
    m.rest = u64(1) << (6 * (m.random() % 3));
    m.cluster = kernel.cluster, m.threads = kernel.threads, m.full_at = kernel.full_at, m.first = first;
    m.blocks.resize(grid), m.clusters.resize(grid / kernel.cluster);
    m.alive = grid * kernel.threads;
    m.fibers.resize(m.alive);
    stacks.reserve(m.alive);
    gridDim.x = grid;
    for (u32 i = 0; i < m.alive; ++i) {
        Fiber& f = m.fibers[i];
        f.block = i / kernel.threads, f.thread = i % kernel.threads;
        m.start(f, stacks, i, kernel.entry);
    }
    for (Block& b : m.blocks) {
        b.alive = kernel.threads;
        b.shared.assign(SHARED, 0xff);  // NaN in every format
    }
    m.run();
    if (m.error.empty() && !m.copies.empty()) m.error = "TMA copies are left at the end";
    if (m.error.empty())
        for (const Block& b : m.blocks)
            for (const auto& [address, barrier] : b.barriers)
                if (barrier.bytes) m.error = "a barrier expects bytes that never come";
}

int launch(const Kernel& kernel, u32 grid, u64 seed, char* message, u32 length) {
    const u32 at_once = kernel.apart ? kernel.cluster : grid;
    std::string error;
    simt::Stacks stacks;
    for (u32 first = 0; first < grid && error.empty(); first += at_once) {
        Machine fresh;
        machine = &fresh;
        try {
            run(stacks, kernel, at_once, first, seed + first);
        } catch (const std::exception& raised) {
            fresh.error = raised.what();
        }
        error = fresh.error;
        machine = nullptr;
    }
    snprintf(message, length, "%s", error.c_str());
    return error.empty() ? 0 : 1;
}

}  // namespace emulator
