// Memory between CTAs: partial sums, of which a thread may rely only on those that fences and an atomic order before it.
//
//     the thread that stores    device_fence(), a named barrier; then a thread of its warpgroup changes a counter
//     the thread that loads     a thread of its warpgroup has changed or read a counter since; a named barrier, device_fence()
//
// Every other load of another thread's partial sum is an error, whatever memory holds.
#include "ptx.cuh"
#include "launch.hpp"

using namespace emulator;

namespace emulator {

static Warpgroup& mine() { return here().warpgroups[me().thread / 128]; }

void join_warpgroup() {
    Fiber& f = me();
    std::vector<const Float4*>& met = mine().met;
    met.insert(met.end(), f.fenced_partials.begin(), f.fenced_partials.end());
    f.fenced_partials.clear();
}

void learn_of_warpgroup() { me().known = mine().observed; }

// What an atomic with acquire semantics does, and with `release` one with release semantics.
static void order(bool release) {
    if (release) {
        ++machine->releases;
        join_warpgroup();
        for (const Float4* at : mine().met) machine->partials[at].released = machine->releases;
        mine().met.clear();
    }
    mine().observed = me().acquired = machine->releases;
}

}  // namespace emulator

void store_partial(Float4* to, Float4 value) {
    touch();
    *to = value;
    machine->partials[to] = {machine->current, 0};
    me().stored_partials.push_back(to);
}

Float4 load_partial(const Float4* from) {
    touch();
    const auto found = machine->partials.find(from);
    if (found == machine->partials.end()) fail("a partial sum is loaded that no thread has stored");
    const Partial& partial = found->second;
    if (partial.writer != machine->current) {
        if (partial.released == 0) fail("a partial sum is loaded that was not fenced, or not counted");
        if (partial.released > me().acquired) fail("a partial sum is loaded without a fence since it was counted");
    }
    return *from;
}

void device_fence() {
    maybe_yield();
    Fiber& f = me();
    f.fenced_partials.insert(f.fenced_partials.end(), f.stored_partials.begin(), f.stored_partials.end());
    f.stored_partials.clear();
    f.acquired = std::max(f.acquired, f.known);
}

u32 count_up(u32* counter) {
    touch();
    order(true);
    return (*counter)++;
}

u64 add_to_counter(u64* counter, u64 what) {
    touch();
    const u64 old = *counter;
    *counter += what;
    order(true);
    maybe_yield();
    return old;
}

u64 load_counter(const u64* counter) {
    touch();
    machine->yield();
    order(false);
    return *counter;
}

void mark(u32* word, u32 bits) {
    touch();
    *word |= bits;
}

bool mark_first(u32* word, u32 bit) {
    touch();
    const bool first = (*word & bit) == 0;
    *word |= bit;
    return first;
}

void raise_to(u32* word, u32 value) {
    touch();
    *word = std::max(*word, value);
}
