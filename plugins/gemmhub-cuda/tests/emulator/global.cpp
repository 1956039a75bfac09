// Global memory: the buffers of a launch, and what blocks store for each other.
#include "launch.hpp"

namespace emulator {

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
    if (found == machine->parts.end()) fail("reads a part that no thread stored", where);
    const Part& part = found->second;
    if (!part.released && (part.block != here().number || part.thread != me().thread))
        fail("reads a part that thread " + std::to_string(part.thread) + " of its block stored at " + text(part.where) +
                 ": no fence and barrier were between that and counting up",
             where);
    return *from;
}

}  // namespace emulator
