// Which accesses of a block precede which, where threads wait for each other by asynchronous barriers: vector clocks.
// Barriers of the block and of a warp are counted in Thread instead, which is all that other kernels need.
#pragma once
#include <cstdint>
#include <vector>

#include "block.hpp"

namespace musa_sim {

// What had happened before a moment: a time of each thread.
using Moment = std::vector<uint32_t>;

void order_block_starts();
// From the first asynchronous barrier of a block on. Until then every thread's time is 1 and orders nothing.
void order_begins();

// The running time of a thread; goes up with each release.
uint32_t time_of(const Thread& thread);
// Whether what a thread did at a time precedes all that `me` does now.
bool precedes(unsigned thread, uint32_t time, const Thread& me);

// What `thread` has done so far, and what it knows of others, becomes part of `moment`.
void release(const Thread& thread, Moment& moment);
// What `moment` holds precedes all that `thread` does from now on.
void acquire(const Thread& thread, const Moment& moment);
// All lanes of the running thread's warp have met: each knows what the others do.
void order_warp(unsigned warp);

}  // namespace musa_sim
