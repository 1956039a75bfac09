// Launches: blocks spread over child processes, so that a kernel's fault is a device's error and not the program's end.
#pragma once
#include <string>
#include <vector>

#include "musa_sim_device.h"

namespace musa_sim {

// The thread-local segment of the module that a kernel is in: its static shared variables, as mcc writes them.
struct SharedSegment {
  char* start = nullptr;
  size_t bytes = 0;
};

struct Launch {
  MusaSimKernel kernel;
  std::string name;
  dim3 grid, block;
  size_t dynamic_shared = 0;
  int device = 0;
  std::vector<std::vector<char>> values;  // the arguments, copied when the program launched
  SharedSegment shared;
};

constexpr size_t kMostDynamicShared = 192 << 10;

SharedSegment shared_segment(const void* function);

// Runs it to its end; a fault loses the device.
void run_launch(Launch& launch);

}  // namespace musa_sim
