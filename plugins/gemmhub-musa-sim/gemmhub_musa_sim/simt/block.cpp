#include "block.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "barriers.hpp"
#include "checker.hpp"
#include "issue.hpp"
#include "options.hpp"
#include "order.hpp"
#include "squads.hpp"
#include "tensor_copies.hpp"

// The variables behind threadIdx and its like; written here only.
#pragma GCC visibility push(default)
extern "C" {
uint3 musaSimThreadIdx, musaSimBlockIdx;
dim3 musaSimBlockDim, musaSimGridDim;
}
#pragma GCC visibility pop

namespace musa_sim {

Block block;

namespace {

using Barrier = simt::Meeting<Thread>;

// What the lanes of one group exchange in one collective. Two of each take turns: a fast lane may fill the second
// while slow ones still read the first, and cannot get further.
struct Collective {
  MusaSimExchange area;
  unsigned number = ~0u;  // which collective of the group this is
  const char* operation;
  const void* pointer;
  long ld;
};

constexpr unsigned kWidths[] = {32, 128};
struct Groups {
  std::vector<Barrier> barriers;
  std::vector<Collective> collectives;
};

int hardware_warp = 128;
Groups groups[2];
Barrier block_barrier;
void (*kernel)(void*) = nullptr;
void* kernel_argument = nullptr;
int reduced[3];

Groups& groups_of(unsigned width) { return groups[width == 128]; }

unsigned group_size(unsigned width) {
  const unsigned first = block.current->linear / width * width;
  return std::min(width, block.size - first);
}

std::string deadlock() {
  std::vector<Thread*> all;
  for (unsigned i = 0; i < block.size; i++) all.push_back(&block.threads[i]);
  return simt::deadlock(all, [](const Thread& thread) { return simt::text(thread.waits); }) + describe_barriers();
}

void shuffle(std::vector<Thread*>& threads) {
  if (options.seed) std::shuffle(threads.begin(), threads.end(), block.random);
}

// All lanes of a group must be at the same operation.
template <class Act>
void arrive_in_group(unsigned width, const char* operation, Act act) {
  Barrier& barrier = groups_of(width).barriers[block.current->linear / width];
  if (!barrier.agrees({operation})) {
    const std::string text =
        std::string("lanes of one warp wait at different operations: ") + barrier.place.what + " and " + operation;
    musaSimFault(musaErrorLaunchFailure, text.c_str());
  }
  block.meet(barrier, group_size(width), {operation}, [&] {
    act();
    shuffle(barrier.waiting);
  });
}

void arrive_in_group(unsigned width, const char* operation) {
  arrive_in_group(width, operation, [] {});
}

void thread_main() {
  kernel(kernel_argument);
  if (squad_work_is_open())
    musaSimFault(musaErrorLaunchFailure, "a thread returned without __musa_sqmma_wait after its last SQMMA");
  if (!block.current->copies.empty())
    musaSimFault(musaErrorLaunchFailure, "a thread returned while its asynchronous copies were in flight");
  block.running--;
  if (!block_barrier.waiting.empty())
    musaSimFault(musaErrorLaunchFailure, "a thread returned while others of its block wait at a barrier");
  block.leave();
}

}  // namespace

// In the order of their numbers, unless shuffled. Only when no thread can go on do warps issue what they wait at, and
// only then do copies arrive: as late as they may.
Thread* Block::choose() {
  while (ready.empty() && (issue_next() || copy_arrives())) {
  }
  if (ready.empty() && running) musaSimFault(musaErrorLaunchFailure, deadlock().c_str());
  if (ready.empty()) return nullptr;
  Thread* next = take(ready.size() - 1);
  musaSimThreadIdx = next->index;
  return next;
}

void Block::act_as(Thread* thread) {
  current = thread;
  if (thread) musaSimThreadIdx = thread->index;
}

void reserve_block(dim3 size, int warp) {
  hardware_warp = warp;
  const unsigned count = size.x * size.y * size.z;
  block.stacks.reserve(count);
  if (block.threads.size() < count) block.threads.resize(count);
  block.ready.reserve(count);
  block_barrier.waiting.reserve(count);
  for (const unsigned width : kWidths) {
    Groups& of = groups_of(width);
    const unsigned needed = (count + width - 1) / width;
    if (of.barriers.size() >= needed) continue;
    of.barriers.resize(needed);
    of.collectives.resize(2 * needed);
    for (Barrier& barrier : of.barriers) barrier.waiting.reserve(width);
  }
}

void run_block(dim3 grid, dim3 size, unsigned number, void (*call)(void*), void* argument) {
  kernel = call;
  kernel_argument = argument;
  block.size = block.running = size.x * size.y * size.z;
  block.number = number;
  block.random.seed(static_cast<unsigned>(options.seed) + number * 2654435761u);
  musaSimGridDim = grid;
  musaSimBlockDim = size;
  musaSimBlockIdx = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
  for (Groups& of : groups)
    for (Collective& collective : of.collectives) collective.number = ~0u;
  order_block_starts();
  issues_block_starts();
  barriers_block_starts();
  tensor_copies_block_starts();
  squads_block_starts();
  block.ready.clear();
  for (unsigned i = block.size; i-- > 0;) {
    Thread& thread = block.threads[i];
    thread.linear = i;
    thread.index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    thread.barriers = thread.warp_barriers = thread.collectives = 0;
    thread.copies.clear();
    thread.issued = nullptr;
    block.start(thread, block.stacks, i, thread_main);
  }
  shuffle(block.ready);
  block.run();
  tensor_copies_block_ends();
  barriers_block_ends();
  checker_block_ends();
}

void describe_thread(char* text, size_t bytes) {
  const uint3 b = musaSimBlockIdx, t = musaSimThreadIdx;
  std::snprintf(text, bytes, "block (%u, %u, %u), thread (%u, %u, %u)", b.x, b.y, b.z, t.x, t.y, t.z);
}

}  // namespace musa_sim

using namespace musa_sim;

extern "C" {

void musaSimBarrier(const char* file, unsigned line) {
  if (block.running != block.size)
    musaSimFault(musaErrorLaunchFailure, "__syncthreads() after threads of the block have returned");
  const simt::Place place = {"__syncthreads", {file, line}};
  if (!block_barrier.agrees(place)) {
    const std::string text = "threads of one block wait at different barriers: " +
                             simt::text(block_barrier.place.where) + " and " + simt::text(place.where);
    musaSimFault(musaErrorLaunchFailure, text.c_str());
  }
  block.meet(block_barrier, block.size, place, [] {
    checker_barrier();
    shuffle(block_barrier.waiting);
  });
  block.current->barriers++;
}

int musaSimBarrierReduce(const char* file, unsigned line, int predicate, int operation) {
  if (block_barrier.waiting.empty()) {
    reduced[0] = reduced[2] = 0;
    reduced[1] = 1;
  }
  reduced[0] += predicate != 0;
  reduced[1] &= predicate != 0;
  reduced[2] |= predicate != 0;
  musaSimBarrier(file, line);
  const int result = reduced[operation];
  musaSimBarrier(file, line);  // nobody starts the next reduction before all have read this one
  return result;
}

void musaSimWarpBarrier(void) {
  const unsigned width = static_cast<unsigned>(hardware_warp);
  arrive_in_group(width, "__syncwarp", [=] { order_warp(width); });
  block.current->warp_barriers++;
}

unsigned musaSimLane(unsigned width) { return block.current->linear % width; }

MusaSimExchange* musaSimJoin(unsigned width, const char* operation, const void* pointer, long ld) {
  Thread& me = *block.current;
  Collective& one = groups_of(width).collectives[me.linear / width * 2 + (me.collectives & 1)];
  char text[200];
  if (group_size(width) != width) {
    const unsigned present = group_size(width);
    std::snprintf(text, sizeof text, "%s by a group of %u threads that has only %u", operation, width, present);
    musaSimFault(musaErrorLaunchFailure, text);
  }
  if (one.number != me.collectives) {
    one.number = me.collectives;
    one.operation = operation;
    one.pointer = pointer;
    one.ld = ld;
    one.area.multiplied = 0;
  } else if (std::strcmp(one.operation, operation) != 0 || one.pointer != pointer || one.ld != ld) {
    std::snprintf(text, sizeof text, "lanes of one group disagree: %s and %s, or the pointer or leading dimension",
                  one.operation, operation);
    musaSimFault(musaErrorLaunchFailure, text);
  }
  return &one.area;
}

void musaSimMeet(unsigned width) {
  arrive_in_group(width, "a collective");
  block.current->collectives++;
  if (options.lockstep) block.current->warp_barriers++;
}

void musaSimMultiply(MusaSimExchange* area, int m, int n, int k) {
  if (area->multiplied) return;
  area->multiplied = 1;
  for (int i = 0; i < m; i++) {
    float* c = area->c + i * n;
    std::fill(c, c + n, 0.0f);
    for (int p = 0; p < k; p++) {
      const float a = area->a[i * k + p];
      const float* b = area->b + p * n;
      for (int j = 0; j < n; j++) c[j] += a * b[j];
    }
  }
}

void musaSimLockstep(unsigned width) {
  if (!options.lockstep) return;
  arrive_in_group(width, "store_matrix_sync");
  block.current->warp_barriers++;
}

int musaSimFragmentLayout(void) { return options.layout; }

}  // extern "C"
