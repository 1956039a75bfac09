// Fibers: emulated threads take turns, each on a stack of its own.
#pragma once
#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) || defined(SIMT_UCONTEXT)
#include <ucontext.h>
#define SIMT_USES_UCONTEXT 1
#endif

namespace simt {

struct Fiber {
#if defined(SIMT_USES_UCONTEXT)
    ucontext_t context;
#else
    void* stack_pointer = nullptr;
#endif
};

// Memory for stacks, each above a guard page. A page takes memory once it is touched.
class Stacks {
  public:
    static constexpr size_t BYTES = 128 << 10;

    Stacks() = default;
    Stacks(const Stacks&) = delete;
    ~Stacks();
    // Makes room for `count` stacks; existing ones move, so no fiber may be on one. std::bad_alloc without memory.
    void reserve(size_t count);
    char* at(size_t index) const;
    // Whether an address is on one of the stacks, on a guard page, or less than a stack's size below them.
    bool overflow(uintptr_t address) const;

  private:
    char* pool_ = nullptr;
    size_t count_ = 0;
};

// Makes the fiber start in `entry`, which must not return, on stack `index`.
void prepare(Fiber& fiber, const Stacks& stacks, size_t index, void (*entry)());
void switch_to(Fiber& from, Fiber& to);

}  // namespace simt
