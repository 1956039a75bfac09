// One block at a time: its threads as fibers, its barriers, its warps.
#pragma once
#include <random>
#include <vector>

#include "musa_sim_device.h"
#include "simt/groups.hpp"
#include "simt/schedule.hpp"

namespace musa_sim {

constexpr unsigned kMostThreads = 1024;

struct Copy {
  const void* pc;
  void* to;
  const void* from;
  size_t bytes, zeros;
  bool arrived;
};

struct Thread : simt::Thread {
  uint3 index;
  unsigned linear;
  unsigned barriers;       // block barriers passed: accesses on different sides of one are ordered
  unsigned warp_barriers;  // the same for __syncwarp
  unsigned collectives;    // _sync operations passed
  simt::Groups<Copy> copies;
  uint64_t* issued;  // where the result of the warp's instruction that it waits for goes, or null
};

struct Block : simt::Schedule<Thread> {
  simt::Stacks stacks;  // their pages are touched only by the processes that run kernels
  std::vector<Thread> threads;
  unsigned size = 0;
  unsigned number = 0;  // linear block index
  unsigned running = 0;
  const void* acting_for = nullptr;  // the code for which the engine itself is touching the kernel's memory
  std::mt19937 random;

  Thread* choose() override;
  // Lets the engine do something in the name of a thread: of the kernel's place in it, and of what it may touch.
  void act_as(Thread* thread);
};

// The block that this process is running.
extern Block block;

// Room for the threads of a launch; before the processes that run it are forked.
void reserve_block(dim3 size, int warp);
// Runs block `number` of the grid to its end. `call` is the kernel with its arguments.
void run_block(dim3 grid, dim3 size, unsigned number, void (*call)(void*), void* argument);

// In words, for messages: "block (1, 0, 0), thread (17, 0, 0)".
void describe_thread(char* text, size_t bytes);

}  // namespace musa_sim
