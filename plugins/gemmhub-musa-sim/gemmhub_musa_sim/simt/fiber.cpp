#include "fiber.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#if !defined(MUSA_SIM_USES_UCONTEXT)
// Saves what a function must preserve, exchanges the stacks, and returns on the other one. ucontext does the same with
// two system calls, which takes several times as long as the kernels' own work between two barriers.
extern "C" void musa_sim_switch(void** save, void* load);
asm(R"(
.pushsection .text
.type musa_sim_switch,@function
.hidden musa_sim_switch
musa_sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size musa_sim_switch,.-musa_sim_switch
.popsection
)");
#endif

namespace musa_sim {

namespace {

char* pool = nullptr;
size_t reserved = 0;
const size_t kGuard = static_cast<size_t>(sysconf(_SC_PAGESIZE));
const size_t kStride = kStackBytes + kGuard;

}  // namespace

void reserve_stacks(size_t count) {
  if (count <= reserved) return;
  if (pool) munmap(pool, reserved * kStride);
  void* mapping = mmap(nullptr, count * kStride, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  pool = static_cast<char*>(mapping);
  reserved = count;
  for (size_t i = 0; i < count; i++) mprotect(pool + i * kStride, kGuard, PROT_NONE);
}

char* stack(size_t index) { return pool + index * kStride + kGuard; }

void prepare(Fiber& fiber, char* stack, size_t index, void (*entry)()) {
  // Stacks that all start at the same place of a page would compete for the same lines of the processor's cache.
  const size_t bytes = kStackBytes - (index * 320) % 4096 / 64 * 64;
#if defined(MUSA_SIM_USES_UCONTEXT)
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
#else
  constexpr int kSavedRegisters = 6;
  void** top = reinterpret_cast<void**>(stack + bytes);
  *--top = nullptr;  // entry's return address; also aligns the stack as a call would
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; i++) *--top = nullptr;
  fiber.stack_pointer = top;
#endif
}

void switch_to(Fiber& from, Fiber& to) {
#if defined(MUSA_SIM_USES_UCONTEXT)
  swapcontext(&from.context, &to.context);
#else
  musa_sim_switch(&from.stack_pointer, to.stack_pointer);
#endif
}

}  // namespace musa_sim
