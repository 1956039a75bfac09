#include "fault.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "block.hpp"
#include "heap.hpp"
#include "options.hpp"
#include "places.hpp"
#include "state.hpp"

namespace musa_sim {

namespace {

Control* control = nullptr;
Fault* own = nullptr;  // where this process reports its fault; null outside children
constexpr int kFaulted = 3;
alignas(64) char signal_stack[64 << 10];

void on_signal(int number, siginfo_t* info, void* context) {
  own->signal = number;
  own->address = reinterpret_cast<uintptr_t>(info->si_addr);
#if defined(__x86_64__)
  const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  own->pc = static_cast<uintptr_t>(registers[REG_RIP]);
  own->write = registers[REG_ERR] & 2;
#else
  static_cast<void>(context);
#endif
  if (block.acting_for) own->pc = reinterpret_cast<uintptr_t>(block.acting_for) - 1;
  describe_thread(own->thread, sizeof own->thread);
  _exit(kFaulted);
}

musaError_t error_of_signal(int signal) {
  if (signal == SIGSEGV || signal == SIGBUS) return musaErrorIllegalAddress;
  if (signal == SIGABRT) return musaErrorAssert;
  if (signal == SIGALRM) return musaErrorLaunchTimeout;
  return musaErrorLaunchFailure;
}

std::string describe(const Fault& fault) {
  char text[200];
  switch (fault.signal) {
    case SIGSEGV:
    case SIGBUS:
      if (block.stacks.overflow(fault.address)) return "a thread needs more local memory than the simulator gives it";
      return std::string("illegal ") + (fault.write ? "write: " : "read: ") + describe_address(fault.address);
    case SIGABRT: return "an assertion failed";
    case SIGFPE: return "integer division by zero";
    case SIGALRM:
      std::snprintf(text, sizeof text, "the kernel ran longer than %d s (option TIMEOUT)", options.timeout);
      return text;
    default: std::snprintf(text, sizeof text, "ended by signal %d", fault.signal); return text;
  }
}

}  // namespace

Control& begin_control() {
  if (!control) {
    void* mapping = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    control = new (mapping) Control;
  }
  std::memset(control->worker, 0, sizeof control->worker);
  control->next = 0;
  return *control;
}

void catch_faults(unsigned worker) {
  own = &control->worker[worker];
  const stack_t alternative{signal_stack, 0, sizeof signal_stack};
  sigaltstack(&alternative, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL, SIGALRM}) sigaction(number, &action, nullptr);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_UNBLOCK, &all, nullptr);
}

void report_fault(const Launch& launch, const Fault& fault, int status) {
  Fault known = fault;
  if (!known.error && !known.signal) {  // the process ended without a word
    known.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (!known.signal) known.error = musaErrorLaunchFailure;
  }
  std::string text = launch.name + ": " + (known.error ? (known.text[0] ? known.text : "the kernel ended its process")
                                                       : describe(known));
  if (known.pc) text += " at " + place(known.pc);
  if (known.thread[0]) text += std::string(" [") + known.thread + "]";
  lose_device(known.error ? static_cast<musaError_t>(known.error) : error_of_signal(known.signal), text);
}

}  // namespace musa_sim

using namespace musa_sim;

extern "C" void musaSimFault(int error, const char* text) {
  if (!own) {
    std::fprintf(stderr, "musa simulator: %s\n", text);
    std::abort();
  }
  own->error = error;
  own->pc = 0;
  std::snprintf(own->text, sizeof own->text, "%s", text);
  describe_thread(own->thread, sizeof own->thread);
  std::fflush(stdout);
  _exit(kFaulted);
}
