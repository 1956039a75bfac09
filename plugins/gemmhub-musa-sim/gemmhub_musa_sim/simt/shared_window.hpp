// Shared memory as the instructions of mp_31 address it: by numbers from 0 up, 18 bits of them in a descriptor. Static
// variables come first, dynamic shared memory at the next multiple of 4096.
#pragma once
#include <cstdint>

#include "launch.hpp"

namespace musa_sim {

constexpr uint32_t kSharedWindow = 1u << 18;

// Before blocks of a launch are run.
void set_shared_window(const Launch& launch);
// The number of an address in shared memory. Numbers themselves are taken, too; anything else fails.
uint32_t shared_number(const void* address, const char* instruction);
// The address of bytes from a number on; fails unless they all are in the kernel's shared memory.
char* shared_address(uint32_t number, size_t bytes, const char* instruction);

// A swizzle of 2^base bytes as a unit: bits [base, stride) of a number are exchanged with those from `line` on, as
// mute's Swizzle<stride - base, base, line - base> does.
struct Swizzle {
  unsigned base = 0, stride = 0, line = 0;  // powers of two; base == stride: none

  uint32_t operator()(uint32_t number) const {
    const uint32_t mask = ((1u << stride) - 1) & ~((1u << base) - 1);
    return base == stride ? number : number ^ ((number >> (line - base)) & mask);
  }
};

}  // namespace musa_sim
