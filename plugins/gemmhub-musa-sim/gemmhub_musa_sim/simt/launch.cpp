#include "launch.hpp"

#include <link.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <numeric>

#include "block.hpp"
#include "checker.hpp"
#include "device.hpp"
#include "fault.hpp"
#include "heap.hpp"
#include "options.hpp"
#include "shared_window.hpp"
#include "state.hpp"

extern "C" void* __tls_get_addr(void*);

namespace musa_sim {

namespace {

// Ends at a page that nobody may touch, and starts at the same place in every launch of this process.
char* map_dynamic_shared() {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* mapping = mmap(nullptr, kMostDynamicShared + page, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  mprotect(static_cast<char*>(mapping) + kMostDynamicShared, page, PROT_NONE);
  return static_cast<char*>(mapping);
}

struct Call {
  const MusaSimKernel* kernel;
  void** arguments;
};

void call_kernel(void* argument) {
  const Call* call = static_cast<Call*>(argument);
  call->kernel->call(call->kernel->function, call->arguments);
}

// Memory that the kernel may not touch: other devices', and dynamic shared memory that it did not ask for.
void restrict_memory(const Launch& launch) {
  for (const auto& [start, allocation] : heap)
    if (allocation.device >= 0 && allocation.device != launch.device)
      mprotect(allocation.mapping, allocation.mapped, PROT_NONE);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t used = (launch.dynamic_shared + page - 1) / page * page;
  if (used < kMostDynamicShared) mprotect(musaSimDynamicShared + used, kMostDynamicShared - used, PROT_NONE);
}

void run_blocks(const Launch& launch, const std::vector<unsigned>& order, std::atomic<unsigned>& next) {
  set_shared_window(launch);
  std::vector<void*> arguments;
  for (const auto& value : launch.values) arguments.push_back(const_cast<char*>(value.data()));
  Call call{&launch.kernel, arguments.data()};
  for (unsigned taken; (taken = next++) < order.size();) {
    if (options.poison) {
      std::memset(launch.shared.start, 0xff, launch.shared.bytes);
      std::memset(musaSimDynamicShared, 0xff, launch.dynamic_shared);
    }
    run_block(launch.grid, launch.block, order[taken], call_kernel, &call);
  }
}

[[noreturn]] void child(const Launch& launch, const std::vector<unsigned>& order, std::atomic<unsigned>& next,
                        unsigned worker) {
  catch_faults(worker);
  restrict_memory(launch);
  const itimerval limit{{0, 0}, {options.timeout, 0}};
  setitimer(ITIMER_REAL, &limit, nullptr);
  checker_worker_starts(worker);
  run_blocks(launch, order, next);
  std::fflush(stdout);
  _exit(0);
}

}  // namespace

SharedSegment shared_segment(const void* function) {
  struct Search {
    const void* function;
    SharedSegment found;
  } search{function, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* module, size_t, void* data) {
        Search& search = *static_cast<Search*>(data);
        const uintptr_t wanted = reinterpret_cast<uintptr_t>(search.function) - module->dlpi_addr;
        bool holds = false;
        size_t bytes = 0;
        for (int i = 0; i < module->dlpi_phnum; i++) {
          const auto& header = module->dlpi_phdr[i];
          if (header.p_type == PT_LOAD && wanted - header.p_vaddr < header.p_memsz) holds = true;
          if (header.p_type == PT_TLS) bytes = header.p_memsz;
        }
        if (holds && bytes) {
          // Asking for the segment also makes it, where this thread has not used it before.
          struct { unsigned long module, offset; } index{module->dlpi_tls_modid, 0};
          search.found = {static_cast<char*>(__tls_get_addr(&index)), bytes};
        }
        return static_cast<int>(holds);
      },
      &search);
  return search.found;
}

static void run_in_children(Launch& launch) {
  launch.shared = shared_segment(launch.kernel.function);
  reserve_block(launch.block, description().warp);
  const unsigned count = launch.grid.x * launch.grid.y * launch.grid.z;
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0u);
  if (options.seed) std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(options.seed)));

  Control& control = begin_control();
  checker_launch_starts(launch);
  if (options.workers <= 0) {
    checker_worker_starts(0);
    run_blocks(launch, order, control.next);
  } else {
    std::vector<pid_t> children;
    const unsigned workers = std::min({count, static_cast<unsigned>(options.workers), kMostWorkers});
    std::fflush(nullptr);
    for (unsigned worker = 0; worker < workers; worker++) {
      const pid_t pid = fork();
      if (pid == 0) child(launch, order, control.next, worker);
      if (pid > 0) children.push_back(pid);
    }
    if (children.empty()) lose_device(musaErrorLaunchFailure, "the simulator could not start a process");
    for (unsigned worker = 0; worker < children.size(); worker++) {
      int status = 0;
      while (waitpid(children[worker], &status, 0) < 0 && errno == EINTR) {
      }
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      control.next = count;  // the others stop after the blocks they are in
      if (!device_lost()) report_fault(launch, control.worker[worker], status);
    }
  }
  checker_launch_ends(launch);
  const std::string broken = broken_canary();
  if (!broken.empty() && !device_lost())
    lose_device(musaErrorIllegalAddress, launch.name + ": a write went to " + broken);
}

void run_launch(Launch& launch) {
  if (device_lost()) return;
  try {
    run_in_children(launch);
  } catch (const std::bad_alloc&) {  // must not travel into the program, which may not be C++
    lose_device(musaErrorLaunchFailure, launch.name + ": the simulator has not enough memory to run it");
  }
}

}  // namespace musa_sim

extern "C" {
extern char* const musaSimDynamicShared;
char* const musaSimDynamicShared = musa_sim::map_dynamic_shared();
}
