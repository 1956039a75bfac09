#include "races.hpp"

#include <sys/mman.h>

#include <cstring>
#include <new>

#include "block.hpp"
#include "device.hpp"
#include "order.hpp"

namespace musa_sim {

namespace {

// Who touched a pair of bytes, and when. Two accesses of one block are ordered if a barrier of both lies between them:
// the counts of barriers that their threads had passed then differ. Asynchronous barriers order by the threads' times.
struct Mark {
  uintptr_t pc;
  uint32_t block;  // its number + 1; 0: nobody
  uint32_t barriers, warp_barriers;
  uint32_t time;   // of its thread (order.hpp)
  uint16_t thread;
  uint8_t bytes;  // which of the two, as bits
  uint8_t atomic;
};

// Two readers, since a writer may be one of them and yet race with the other.
struct Cell {
  Mark write, read, other_read;
  uint32_t block;        // whose the state below is, + 1
  uint8_t written;       // which bytes have been, as bits
  uint8_t in_flight;     // which bytes an asynchronous copy is writing
  uint8_t readers;       // asynchronous operations that are reading some of them
};

constexpr size_t kGranule = 2;

struct Shadow {
  Cell* cells = nullptr;
  size_t mapped = 0;

  // Fresh pages of zeros. Global memory's are shared, so that blocks which run in different processes meet.
  void renew(size_t bytes, int sharing) {
    if (cells) munmap(cells, mapped);
    mapped = (bytes / kGranule + 1) * sizeof(Cell);
    void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    cells = static_cast<Cell*>(mapping);
  }
};

Shadow shared_shadow, global_shadow;
uint32_t warp = 128;

bool ordered(const Mark& before, const Thread& me) {
  if (before.thread == me.linear || before.barriers != me.barriers) return true;
  if (before.thread / warp == me.linear / warp && before.warp_barriers != me.warp_barriers) return true;
  return precedes(before.thread, before.time, me);
}

bool races(const Mark& before, const Mark& now, const Thread& me) {
  if (!before.block || !(before.bytes & now.bytes) || (before.atomic && now.atomic)) return false;
  return before.block != now.block || !ordered(before, me);
}

void report(Kind kind, Space space, const Mark& now, const Mark* before, int64_t offset) {
  Report found{};
  found.kind = kind;
  found.space = space;
  found.block = now.block - 1;
  found.thread = now.thread;
  found.pc = now.pc;
  found.offset = offset;
  if (before) {
    found.other = before->pc;
    found.other_thread = before->thread;
    found.other_block = before->block - 1;
    found.between_blocks = before->block != now.block;
  }
  add_report(found);
}

void touch(Cell& cell, Space space, const Mark& now, Access access, const Thread& me, int64_t offset) {
  const bool is_read = access == Access::kRead || access == Access::kReadStarts || access == Access::kReadCompletes;
  const bool is_write = !is_read;
  if (cell.block != now.block) {  // this block touches it for the first time
    cell.block = now.block;
    cell.in_flight = cell.readers = 0;
    if (space == Space::kShared) {
      cell.written = 0;
      cell.write.block = cell.read.block = cell.other_read.block = 0;
    }
  }
  if (access == Access::kArrives) {
    cell.in_flight &= static_cast<uint8_t>(~now.bytes);
    cell.written |= now.bytes;
    return;
  }
  if (access == Access::kCopyCompletes) {
    cell.in_flight &= static_cast<uint8_t>(~now.bytes);
  } else if (cell.in_flight & now.bytes) {
    report(Kind::kInFlight, space, now, &cell.write, offset);
  } else if (is_read && space == Space::kShared && (cell.written & now.bytes) != now.bytes) {
    report(Kind::kUninitialised, space, now, nullptr, offset);
  }
  if (access == Access::kReadStarts) cell.readers++;
  if (access == Access::kReadCompletes && cell.readers) cell.readers--;
  if (is_write && access != Access::kCopyCompletes && cell.readers)
    report(Kind::kBeingRead, space, now, &cell.read, offset);
  if (races(cell.write, now, me))
    report(is_write ? Kind::kWriteAfterWrite : Kind::kReadAfterWrite, space, now, &cell.write, offset);
  if (!is_write) {
    // Keep the two newest readers; one that is ordered before everything to come makes room first.
    const bool same_block = cell.read.block == now.block;
    if (cell.read.block && (!same_block || !ordered(cell.read, me))) cell.other_read = cell.read;
    cell.read = now;
    return;
  }
  for (const Mark* read : {&cell.read, &cell.other_read})
    if (races(*read, now, me)) report(Kind::kWriteAfterRead, space, now, read, offset);
  cell.write = now;
  if (access == Access::kCopyStarts)
    cell.in_flight |= now.bytes;
  else
    cell.written |= now.bytes;
}

}  // namespace

void begin_races() {
  warp = static_cast<uint32_t>(description().warp);
  shared_shadow.renew(shared_bytes(), MAP_PRIVATE);
  global_shadow.renew(global_bytes(), MAP_SHARED);
}

void check_races(const Range& range, Space space, uintptr_t p, size_t bytes, Access access, uintptr_t pc) {
  const Thread& me = *block.current;
  Mark now{pc, block.number + 1, me.barriers, me.warp_barriers, time_of(me),
           static_cast<uint16_t>(me.linear), 0, 0};
  now.atomic = access == Access::kAtomic;
  const Shadow& shadow = space == Space::kShared ? shared_shadow : global_shadow;
  const size_t first = range.shadow + (p - range.start), end = first + bytes;
  for (size_t at = first; at < end;) {
    const size_t next = (at / kGranule + 1) * kGranule;
    now.bytes = static_cast<uint8_t>((at % kGranule == 0 ? 1 : 0) | (next <= end ? 2 : 0));
    touch(shadow.cells[at / kGranule], space, now, access, me, static_cast<int64_t>(at - range.shadow));
    at = next;
  }
}

}  // namespace musa_sim
