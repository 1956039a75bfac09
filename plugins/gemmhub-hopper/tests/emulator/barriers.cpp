// The barriers of shared memory (mbarrier): arrivals, bytes, phases, and to whom a new one is known.
#include "launch.hpp"

namespace emulator {

// `least`: what must be known of a barrier that this thread made itself.
Barrier& barrier_of(Block& block, u32 address, Known least) {
    auto found = block.barriers.find(address);
    if (found == block.barriers.end()) fail("no barrier at " + std::to_string(address));
    const bool others = found->second.maker != machine->current;
    const Known needed = !others ? least : &block == &here() ? IN_BLOCK : IN_CLUSTER;
    if (found->second.known < needed)
        fail("a barrier is used whose initialisation was not " +
             std::string(found->second.known == MAKER ? "fenced" : "followed by a sync of those that use it"));
    return found->second;
}

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
        machine->release(b.phase);
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

// The phase that a woken thread waited for is over, but the next one may be, too, before its turn.
void wait_for(u32 address, u32 parity) {
    maybe_yield();
    Barrier& b = barrier_of(here(), address);
    me().number = address, me().parity = parity;
    while (b.parity == parity) {
        b.phase.waiting.push_back(&me());
        machine->wait({BARRIER});
    }
}

}  // namespace emulator
