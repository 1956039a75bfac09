// Bank conflicts: the accesses of a warp's lanes put side by side.
#include <set>

#include "launch.hpp"

namespace emulator {

// Remembers an access, so that those of a warp's lanes can be put side by side at the end.
void note(u32 address, u32 bytes, Where where) {
    if (!machine->count) return;
    const u32 warp = me().thread / 32, ordinal = me().ordinals[{where.file, where.line}]++;
    Request& r = here().requests[{warp, where.file, where.line, ordinal}];
    r.where = where, r.bytes = bytes;
    r.addresses[me().thread % 32] = address;
}

// How often the banks must be read or written for accesses at once: a bank gives one word of 4 bytes a time.
static u32 wavefronts(const std::vector<u32>& addresses, u32 bytes) {
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

}  // namespace emulator
