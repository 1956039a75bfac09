// TMA: copies of boxes that happen late, and the driver's encoder of tensor maps.
#include "launch.hpp"

namespace emulator {

constexpr u32 TF32_MAP = 11;  // a kind of map: TMA rounds float32 as it loads

// To the nearest number with 11 significant bits, of two the even one. Infinities and NaNs remain.
static void round_to_tf32(unsigned char* at) {
    const u32 bits = read_as<u32>(at);
    if ((bits & 0x7f800000) == 0x7f800000) return;
    const u32 rounded = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(at, &rounded, 4);
}

// One box between global memory and the shared memory of one block. As seen on an H200, stores write whole units of 16
// bytes of a row, also the part of one that is outside of the tensor.
static u32 transfer(const Copy& copy, Block& block, bool load) {
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
                    if (m.kind == TF32_MAP) round_to_tf32(shared);
                } else if (inside) {
                    memcpy(global, shared, element);
                }
            }
    return width * m.box[1] * m.box[2];
}

static void perform(const Copy& copy) {
    if (!copy.blocks) {
        transfer(copy, machine->blocks[copy.block], false);
        return;
    }
    const u32 first = copy.block / machine->cluster * machine->cluster;
    for (u32 rank = 0; rank < machine->cluster; ++rank)
        if (copy.blocks >> rank & 1) {
            Block& block = machine->blocks[first + rank];
            if (block.alive == 0) stop("TMA writes to a block that has ended");
            Barrier& b = block.barriers.at(copy.barrier);
            b.bytes -= transfer(copy, block, true);
            settle(b);
        }
}

void perform_copy(size_t index) {
    const Copy copy = machine->copies[index];
    machine->copies.erase(machine->copies.begin() + index);
    perform(copy);
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
            barrier_of(machine->blocks[me().block / machine->cluster * machine->cluster + rank], barrier, FENCED);
    const u32 alignment = copy.map.swizzle == 16 ? 128 : 8 * copy.map.swizzle;
    if (place % alignment) fail("a box at an address that is no multiple of " + std::to_string(alignment));
    if (x * static_cast<long long>(copy.map.stride[0]) % 16) fail("a box that begins between units of 16 bytes");
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

}  // namespace emulator

using namespace emulator;

// cuTensorMapEncodeTiled, with its rules; for three dimensions, as the plugin has them.
extern "C" int encode(TensorMap* map, int kind, u32 rank, void* address, const u64* size, const u64* stride,
                      const u32* box, const u32* step, int interleave, int swizzle, int promotion, int fill) {
    constexpr int INVALID = 1;
    if (kind != 0 && kind != 3 && kind != 6 && kind != 7 && kind != 9 && kind != 11) return INVALID;
    const u32 element = kind == 0 ? 1 : kind == 6 || kind == 9 ? 2 : 4;
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
