// What the engine tells the checker and the counters. All of it costs a test of one flag in kernels that were not
// compiled with the hooks.
#pragma once
#include "block.hpp"
#include "races.hpp"

namespace musa_sim {

struct Launch;

void checker_launch_starts(const Launch& launch);   // in the parent, before the processes are forked
void checker_worker_starts(unsigned worker);
void checker_barrier();                             // the last thread of the block has reached a barrier
void checker_block_ends();
void checker_launch_ends(const Launch& launch);     // in the parent, after they ended

void checker_copy_starts(const Copy& copy);
void checker_copy_completes(const Copy& copy);

// An access that the engine makes for the running thread, at `pc` in its code.
void checker_access(const void* p, size_t bytes, Access access, const void* pc);
// A misuse of an asynchronous barrier; `pc` is null where no instruction is at fault.
void checker_barrier_finding(const void* pc, const char* format, unsigned barrier);
// Shared memory is still read by an asynchronous operation that the block does not wait for.
void checker_unfinished(const void* pc, const char* text);

}  // namespace musa_sim
