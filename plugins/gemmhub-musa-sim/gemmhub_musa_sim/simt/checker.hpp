// What the engine tells the checker and the counters. All of it costs a test of one flag in kernels that were not
// compiled with the hooks.
#pragma once
#include "block.hpp"

namespace musa_sim {

struct Launch;

void checker_launch_starts(const Launch& launch);   // in the parent, before the processes are forked
void checker_worker_starts(unsigned worker);
void checker_barrier();                             // the last thread of the block has reached a barrier
void checker_block_ends();
void checker_launch_ends(const Launch& launch);     // in the parent, after they ended

void checker_copy_starts(const Copy& copy);
void checker_copy_completes(const Copy& copy);

}  // namespace musa_sim
