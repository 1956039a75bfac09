// What an address in a kernel is: the checker and the counters ask for every access.
#pragma once
#include <cstddef>
#include <cstdint>

#include "launch.hpp"
#include "reports.hpp"

namespace musa_sim {

// A range of memory with its own shadow: shared memory, or one allocation.
struct Range {
  uintptr_t start = 0, end = 0;
  size_t shadow = 0;  // where its bytes start among all bytes of its space
};

enum class Region { kShared, kGlobal, kStack, kProgram, kHost, kNowhere };

// Of this launch; in the parent.
void map_memory(const Launch& launch);
size_t shared_bytes();
size_t global_bytes();

// Which region p is in; for shared and global memory *range says where. An access that starts in a range may leave it.
Region locate(uintptr_t p, const Range** range);

}  // namespace musa_sim
