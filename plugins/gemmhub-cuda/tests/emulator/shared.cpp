// Shared memory: what each access of it may rely on, and copies that land when they are waited for.
#include "launch.hpp"

namespace emulator {

static Moment now(Where where) { return {int(me().thread), me().block_syncs, me().warp_syncs, where}; }

// Whether this thread may rely on what was done at `then` being over.
static bool ordered(const Moment& then) {
    const Fiber& f = me();
    if (then.thread == NOBODY || then.thread == int(f.thread) || then.block_syncs < f.block_syncs) return true;
    return then.thread >= 0 && then.thread / 32 == int(f.thread) / 32 && then.warp_syncs < f.warp_syncs;
}

static std::string by(const Moment& m) {
    return (m.thread == MANY ? "several threads" : "thread " + std::to_string(m.thread)) + " at " + text(m.where);
}

u32 offset_of(u32 address, u32 bytes, Where where) {
    if (address < WINDOW + 16 || address - WINDOW + bytes > machine->shared + 16)
        fail("shared address " + std::to_string(int(address - WINDOW - 16)) + " is out of the " +
                 std::to_string(machine->shared) + " bytes",
             where);
    if (address % bytes) fail("shared address is no multiple of " + std::to_string(bytes), where);
    return address - WINDOW;
}

void read_cells(u32 offset, u32 bytes, Where where) {
    for (u32 i = offset / 2; i < (offset + bytes) / 2; ++i) {
        Cell& c = here().cells[i];
        if (c.writer.thread == NOBODY) fail("reads shared memory that no thread wrote", where);
        if (c.pending) fail("reads what a copy of " + by(c.writer) + " may still be writing", where);
        if (!ordered(c.writer)) fail("reads what " + by(c.writer) + " wrote, with no barrier in between", where);
        Moment& r = c.reader;
        const Fiber& f = me();
        const bool earlier = r.thread == NOBODY || r.block_syncs < f.block_syncs;
        if (earlier || r.thread == int(f.thread)) {
            if (earlier) c.lanes = false;
            r = now(where);
        } else if (r.thread >= 0 && r.thread / 32 == int(f.thread) / 32) {
            c.lanes = true;
            r = now(where);
        } else {
            r = {MANY, f.block_syncs, 0, where};
        }
    }
}

static void write_cells(u32 offset, u32 bytes, bool pending, Where where) {
    for (u32 i = offset / 2; i < (offset + bytes) / 2; ++i) {
        Cell& c = here().cells[i];
        if (c.pending) fail("writes where a copy of " + by(c.writer) + " may still land", where);
        if (!ordered(c.writer)) fail("writes where " + by(c.writer) + " wrote, with no barrier in between", where);
        const bool readers = c.lanes ? c.reader.block_syncs < me().block_syncs ||
                                           (c.reader.thread / 32 == int(me().thread) / 32 &&
                                            c.reader.warp_syncs < me().warp_syncs)
                                     : ordered(c.reader);
        if (!readers) fail("writes where " + (c.lanes ? by({MANY, 0, 0, c.reader.where}) : by(c.reader)) +
                               " reads, with no barrier in between", where);
        c.writer = now(where), c.pending = pending;
        c.reader = {}, c.lanes = false;
    }
}

static void land(const Copy& c) {
    unsigned char* to = &here().shared[c.to];
    memcpy(to, c.from, c.valid);
    memset(to + c.valid, 0, c.bytes - c.valid);
    for (u32 i = c.to / 2; i < (c.to + c.bytes) / 2; ++i) {
        Cell& cell = here().cells[i];
        cell.writer = now(cell.writer.where);
        cell.pending = false;
    }
}

void load_shared(void* value, u32 from, u32 bytes, Where where) {
    const u32 offset = offset_of(from, bytes, where);
    read_cells(offset, bytes, where);
    note(from, bytes, where);
    memcpy(value, &here().shared[offset], bytes);
}

void store_shared(u32 to, const void* value, u32 bytes, Where where) {
    const u32 offset = offset_of(to, bytes, where);
    write_cells(offset, bytes, false, where);
    note(to, bytes, where);
    memcpy(&here().shared[offset], value, bytes);
}

void copy_async(u32 to, const void* from, u32 bytes, u32 valid, Where where) {
    if (valid > bytes) fail("a copy of more bytes than it has", where);
    if (reinterpret_cast<u64>(from) % bytes) fail("a copy from an address that is not aligned", where);
    if (valid) check_global(from, valid, false, where);
    const u32 offset = offset_of(to, bytes, where);
    write_cells(offset, bytes, true, where);
    note(to, bytes, where);
    memset(&here().shared[offset], 0xff, bytes);
    me().copies.add({offset, bytes, valid, from});
}

void copy_commit() { me().copies.commit(); }

void copy_wait(u32 open) {
    me().copies.finish(open, land);
    maybe_switch();
}

}  // namespace emulator
