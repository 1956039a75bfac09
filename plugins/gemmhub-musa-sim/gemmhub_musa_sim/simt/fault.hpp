// Faults of a kernel: caught in the process that runs it, described by the one that launched it.
#pragma once
#include <atomic>
#include <cstdint>

#include "launch.hpp"

namespace musa_sim {

constexpr unsigned kMostWorkers = 16;

// What a process that runs blocks leaves behind when its kernel faults.
struct Fault {
  int error;          // a musaError_t, or 0: none
  int signal;         // or 0
  bool write;         // the access that raised the signal
  uintptr_t pc;       // in the kernel's code, or 0
  uintptr_t address;  // that was touched
  char thread[100];
  char text[1200];
};

// Shared between the processes of one launch.
struct Control {
  std::atomic<unsigned> next;  // the next block in order that nobody has taken
  Fault worker[kMostWorkers];
};

// Cleared, for a new launch.
Control& begin_control();
// In the child: signals become faults of that worker.
void catch_faults(unsigned worker);
// In the parent: the device is lost, and a text says why.
void report_fault(const Launch& launch, const Fault& fault, int status);

}  // namespace musa_sim
