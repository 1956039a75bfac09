#include "fiber.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#if !defined(SIMT_USES_UCONTEXT)
// Saves what a function must preserve, exchanges the stacks, and returns on the other one. ucontext does the same with
// two system calls, which take several times as long as a kernel's own work between two barriers.
extern "C" void simt_switch(void** save, void* load);
asm(R"(
.pushsection .text
.type simt_switch,@function
.hidden simt_switch
simt_switch:
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
.size simt_switch,.-simt_switch
.popsection
)");
#endif

namespace simt {

static const size_t GUARD = static_cast<size_t>(sysconf(_SC_PAGESIZE));
static const size_t STRIDE = Stacks::BYTES + GUARD;

Stacks::~Stacks() {
    if (pool_) munmap(pool_, count_ * STRIDE);
}

void Stacks::reserve(size_t count) {
    if (count <= count_) return;
    void* mapping = mmap(nullptr, count * STRIDE, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    if (pool_) munmap(pool_, count_ * STRIDE);
    pool_ = static_cast<char*>(mapping);
    count_ = count;
    for (size_t i = 0; i < count; ++i) mprotect(pool_ + i * STRIDE, GUARD, PROT_NONE);
}

char* Stacks::at(size_t index) const { return pool_ + index * STRIDE + GUARD; }

bool Stacks::overflow(uintptr_t address) const {
    const uintptr_t first = reinterpret_cast<uintptr_t>(pool_);
    return pool_ && address >= first - BYTES && address < first + count_ * STRIDE;
}

void prepare(Fiber& fiber, const Stacks& stacks, size_t index, void (*entry)()) {
    // Stacks that all start at the same place of a page would compete for the same lines of the processor's cache.
    const size_t bytes = Stacks::BYTES - (index * 320) % 4096 / 64 * 64;
#if defined(SIMT_USES_UCONTEXT)
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks.at(index);
    fiber.context.uc_stack.ss_size = bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, entry, 0);
#else
    constexpr int SAVED_REGISTERS = 6;
    void** top = reinterpret_cast<void**>(stacks.at(index) + bytes);
    *--top = nullptr;  // entry's return address; also aligns the stack as a call would
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < SAVED_REGISTERS; ++i) *--top = nullptr;
    fiber.stack_pointer = top;
#endif
}

void switch_to(Fiber& from, Fiber& to) {
#if defined(SIMT_USES_UCONTEXT)
    swapcontext(&from.context, &to.context);
#else
    simt_switch(&from.stack_pointer, to.stack_pointer);
#endif
}

}  // namespace simt
