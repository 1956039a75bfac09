// Findings of the checker: written by the processes that run kernels, collected by the one that launched them.
#pragma once
#include <cstdint>
#include <string>

#include "launch.hpp"

namespace musa_sim {

enum class Kind : uint8_t {
  kReadAfterWrite,
  kWriteAfterRead,
  kWriteAfterWrite,
  kInFlight,
  kBeingRead,
  kUninitialised,
  kOutOfBounds,
  kHostMemory,
  kProgramVariable,
  kMisaligned,
  kBarrier,
  kIndex,  // found by the compiler's own check of array bounds
};

enum class Space : uint8_t { kShared, kGlobal, kOther };

struct Report {
  Kind kind;
  Space space;
  bool between_blocks;
  uint16_t thread, other_thread;
  uint32_t block, other_block;
  uint32_t line;     // for places that the compiler gave; else 0 and
  uintptr_t pc;      // the access,
  uintptr_t other;   // and the one it collides with, or 0
  int64_t offset;    // in bytes: into shared memory, or into the allocation
  uint64_t count;
  char file[160];
  char text[160];
};

// In the parent: an empty list for each worker.
void begin_reports();
// In a worker. Findings at the same two places count as one.
void add_report(const Report& report);
// Which worker this process is.
void set_report_worker(unsigned worker);
// In the parent: what the workers found, with its places in the source, while the kernel's module is still loaded.
void collect_reports(const Launch& launch);

}  // namespace musa_sim
