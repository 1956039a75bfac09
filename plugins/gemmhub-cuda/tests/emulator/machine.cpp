// A launch: blocks of fibers, whose turn it is, and where they meet. Compiled once for all kernels.
#include "launch.hpp"

Index threadIdx, blockIdx, blockDim, gridDim;
extern const u32 emulated_params_size;
void emulated_kernel(const void* params);

namespace emulator {

Machine* machine;

void fail(const std::string& what, Where where) {
    const Index& b = here().index;
    machine->error = "block (" + std::to_string(b.x) + ", " + std::to_string(b.y) + ", " + std::to_string(b.z) +
                     ") thread " + std::to_string(me().thread) + " at " + text(where) + ": " + what;
    machine->stop();
}

// Any one that is ready; but those of one block, or of one warp, come before others for a while: it gets far ahead.
Fiber* Machine::choose() {
    if (finished || ready.empty()) return nullptr;
    size_t i = random() % ready.size();
    if (random() % 256 == 0) favourite = ready[i]->block, favourite_warp = ready[i]->thread / 32;
    for (int tries = 0; tries < 8 && !liked(*ready[i]); ++tries) i = random() % ready.size();
    Fiber* next = take(i);
    threadIdx = {next->thread, 0, 0};
    blockIdx = next->block->index;
    return next;
}

void maybe_switch() {
    if (machine->random() % 8 == 0) machine->yield();
}

void check_meeting(const simt::Meeting<Fiber>& meeting, const simt::Place& place) {
    if (!meeting.agrees(place))
        fail(std::string(place.what) + " here, while others are in " + text(meeting.place), place.where);
}

void block_sync(Where where) {
    const simt::Place place = {"block_sync", where};
    check_meeting(here().all, place);
    machine->meet(here().all, machine->threads, place, [] {});
    ++me().block_syncs;
}

void warp_sync(Where where) {
    warp_meet("warp_sync", where, nullptr, [](void**) {});
    ++me().warp_syncs;
}

static void entry() {
    emulated_kernel(machine->params);
    Fiber& f = me();
    if (!f.copies.empty()) fail("ends with copies that it has not waited for", {});
    machine->late.insert(machine->late.end(), f.partials.begin(), f.partials.end());
    if (--f.block->alive == 0) machine->finished = f.block;
    machine->leave();
}

static std::unique_ptr<Block> begin(Index index, u32 slot) {
    Machine& m = *machine;
    auto block = std::make_unique<Block>();
    block->index = index, block->number = m.begun++, block->slot = slot;
    block->shared.assign(m.shared + 16, 0xff);  // NaN in every format
    block->cells.resize(m.shared / 2 + 8);
    block->warps.resize((m.threads + 31) / 32);
    block->fibers.resize(m.threads);
    block->alive = m.threads;
    for (u32 i = 0; i < m.threads; ++i) {
        Fiber& f = block->fibers[i];
        f.block = block.get(), f.thread = i, f.block_syncs = f.warp_syncs = 0;
        m.start(f, m.stacks, slot * m.threads + i, entry);
    }
    return block;
}

static std::string stuck() {
    std::vector<Fiber*> all;
    for (const auto& block : machine->resident)
        if (block)
            for (Fiber& f : block->fibers) all.push_back(&f);
    return simt::deadlock(all, [](const Fiber& f) { return text(f.waits); });
}

static void run() {
    Machine& m = *machine;
    // In the order of a GPU, backwards, or in none.
    const u32 order = m.random() % 3;
    if (order == 0) std::reverse(m.blocks.begin(), m.blocks.end());
    if (order == 1) std::shuffle(m.blocks.begin(), m.blocks.end(), m.random);
    m.resident.resize(1 + m.random() % 3);
    m.stacks.reserve(m.resident.size() * m.threads);
    m.by_warp = m.random() % 2;
    for (;;) {
        u32 running = 0;
        for (u32 slot = 0; slot < m.resident.size(); ++slot) {
            auto& block = m.resident[slot];
            if (!block && !m.blocks.empty()) {
                block = begin(m.blocks.back(), slot);
                m.blocks.pop_back();
            }
            running += block != nullptr;
        }
        if (!running) return;
        m.run();  // until a block has ended, none can run, or one has failed
        if (m.error.empty() && !m.finished) m.error = stuck();
        if (!m.error.empty()) return;
        count_conflicts(*m.finished);
        m.resident[m.finished->slot].reset();
        m.finished = nullptr;
    }
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
