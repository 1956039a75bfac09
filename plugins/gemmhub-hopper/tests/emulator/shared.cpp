// Shared memory: stores that TMA sees after a fence only, and copies that land late.
#include "launch.hpp"

namespace emulator {

void store_fragments(u32 row, const u32 (&words)[4], bool transposed) {
    struct Lane {
        Fiber& fiber;
        u32 row;
        const u32* words;
    } mine = {me(), row, words};
    exchange(&mine, [&](void** lanes) {
        const auto at = [&](u32 lane) -> Lane& { return *static_cast<Lane*>(lanes[lane]); };
        for (u32 lane = 0; lane < 32; ++lane)
            for (u32 q = 0; q < 4; ++q)
                for (u32 e = 0; e < 2; ++e) {
                    const u32 i = lane / 4, j = 2 * (lane % 4) + e;
                    const u32 r = transposed ? j : i, c = transposed ? i : j;
                    const u32 base = at(8 * q + r).row;
                    if (base % 16 || base < WINDOW || base >= WINDOW + SHARED) fail("stmatrix to an address that is none");
                    at(lane).fiber.unfenced.push_back({base + 2 * c, u16(at(lane).words[q] >> (16 * e))});
                }
    });
}

void load_fragments(u32 row, u32 (&words)[4], bool transposed) {
    struct Lane {
        u32 row;
        u32* words;
    } mine = {row, words};
    me().fenced = false;
    exchange(&mine, [&](void** lanes) {
        const auto at = [&](u32 lane) -> Lane& { return *static_cast<Lane*>(lanes[lane]); };
        for (u32 lane = 0; lane < 32; ++lane)
            for (u32 q = 0; q < 4; ++q) {
                u16 halves[2];
                for (u32 e = 0; e < 2; ++e) {
                    const u32 i = lane / 4, j = 2 * (lane % 4) + e;
                    const u32 r = transposed ? j : i, c = transposed ? i : j;
                    const u32 base = at(8 * q + r).row;
                    if (base % 16) fail("ldmatrix from an address that is not aligned");
                    halves[e] = read_as<u16>(shared_at(here(), base + 2 * c));
                }
                at(lane).words[q] = halves[0] | u32(halves[1]) << 16;
            }
    });
}

void store_floats(u32 to, const float* values, u32 count) {
    if (to % (4 * count)) fail("a store to an address that is not aligned");
    u16 halves[4];
    memcpy(halves, values, 4 * count);
    for (u32 i = 0; i < 2 * count; ++i) me().unfenced.push_back({to + 2 * i, halves[i]});
    maybe_yield();
}

void finish_loads(u32 open) {
    const auto land = [](const Load& load) {
        unsigned char* to = shared_at(here(), load.place);
        if (load.from)
            memcpy(to, load.from, load.bytes);
        else
            memset(to, 0, load.bytes);
    };
    me().loads.finish(open, land, machine->eager);
}

void load_bytes(const void* from, bool there, void* to, u32 bytes) {
    touch();
    if (there && reinterpret_cast<size_t>(from) % bytes) fail("an address that is not aligned");
    memset(to, 0, bytes);
    if (there) memcpy(to, from, bytes);
}

}  // namespace emulator
