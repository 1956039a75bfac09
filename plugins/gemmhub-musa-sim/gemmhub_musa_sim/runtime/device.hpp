// What the simulated cards are: figures of published cards of each architecture.
#pragma once
#include <cstddef>

namespace musa_sim {

struct Description {
  int arch;             // 22 for mp_22
  const char* name;
  int multiprocessors;
  int warp;             // threads that a hardware warp has
  int threads_per_multiprocessor;
  size_t shared;        // most shared memory of a block that asks for it
  size_t l2;
  size_t memory;
};

constexpr size_t kSharedDefault = 48 << 10;  // dynamic, of a block whose kernel did not ask for more
constexpr int kThreadsPerBlock = 1024;

// Of every device: they are all alike.
const Description& description();
bool valid_device(int device);

}  // namespace musa_sim
