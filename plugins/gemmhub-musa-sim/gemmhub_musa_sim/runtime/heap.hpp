// Device memory: pages shared with the processes that run kernels, ended by guard pages.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "driver_types.h"

namespace musa_sim {

struct Allocation {
  char* mapping;        // first guard page
  size_t mapped;        // bytes, both guard pages included
  size_t bytes;         // what the program asked for
  size_t room;          // bytes from its start to the guard page
  int device;           // -1: pinned host memory
  bool host_readable;   // pinned or managed: both sides may use it
};

// Start address -> allocation. Held while big_lock is.
extern std::map<uintptr_t, Allocation> heap;

// Null when there is no room. Fresh memory is all ones: NaN in every floating-point type.
void* allocate(size_t bytes, int device, bool host_readable);
void release(uintptr_t start);
void limit_memory(size_t bytes);
size_t memory_used(int device);
size_t memory_total();

// The live allocation that holds p, or null; its start goes to *start.
const Allocation* holder(const void* p, uintptr_t* start = nullptr);

// Something wrote between the end of an allocation and its guard page: which, in words; "" when nothing did.
std::string broken_canary();

// What p is, in words, for messages: "17 bytes past the end of the 64-byte allocation 0x...".
std::string describe_address(uintptr_t p);

}  // namespace musa_sim
