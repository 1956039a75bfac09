// Fibers: the simulated threads of a block take turns on one stack each.
#pragma once
#include <cstddef>

#if !defined(__x86_64__) || defined(MUSA_SIM_UCONTEXT)
#include <ucontext.h>
#define MUSA_SIM_USES_UCONTEXT 1
#endif

namespace musa_sim {

struct Fiber {
#if defined(MUSA_SIM_USES_UCONTEXT)
  ucontext_t context;
#else
  void* stack_pointer = nullptr;
#endif
};

constexpr size_t kStackBytes = 128 << 10;

// Stacks for `count` fibers, each above a guard page. Grows when asked for more; never shrinks. The pages are touched
// only by the processes that run kernels.
void reserve_stacks(size_t count);
char* stack(size_t index);

// Makes the fiber start in `entry`, which must not return, on that stack.
void prepare(Fiber& fiber, char* stack, size_t index, void (*entry)());
void switch_to(Fiber& from, Fiber& to);

}  // namespace musa_sim
