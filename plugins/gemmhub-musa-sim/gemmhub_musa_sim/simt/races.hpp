// Races and reads of uninitialised bytes, by what is remembered of the last accesses to each pair of bytes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "memory_map.hpp"

namespace musa_sim {

// In the parent: empty shadow memory for the launch that map_memory() described.
void begin_races();

// A copy writes at some time between kCopyStarts and kCopyCompletes, by which its thread has waited for it, or kArrives,
// when what waits for its barrier may go on. An asynchronous operation reads between kReadStarts and kReadCompletes.
enum class Access { kRead, kWrite, kAtomic, kCopyStarts, kCopyCompletes, kArrives, kReadStarts, kReadCompletes };

// An access of the running thread to bytes that lie in `range`.
void check_races(const Range& range, Space space, uintptr_t p, size_t bytes, Access access, uintptr_t pc);

}  // namespace musa_sim
