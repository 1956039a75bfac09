// Counts of what a kernel does to memory, for authors who have no card to profile it on.
#pragma once
#include <cstddef>
#include <cstdint>

#include "launch.hpp"

namespace musa_sim {

void begin_counters(const Launch& launch);     // in the parent
void set_counter_worker(unsigned worker);      // in a worker
void count_access(uintptr_t p, size_t bytes, bool write, uintptr_t pc);
void count_copy(size_t bytes);
void count_barrier();
void count_block_end();
void collect_counters(const Launch& launch);   // in the parent
void clear_counters();

}  // namespace musa_sim
