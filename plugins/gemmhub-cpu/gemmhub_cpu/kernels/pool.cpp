// The threads wait on a futex after a spin of some microseconds, which covers the step from one phase of a call to the
// next and takes nothing noticeable from the threads of a BLAS. They start when they are first needed, take the affinity of
// the thread that calls, run in the default floating-point mode, and block all signals but those that an instruction of
// theirs raises: these have no other thread to go to. A child process after fork has none of them and starts its own.
#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <initializer_list>

#include "mode.h"

namespace {

using namespace gemmhub;

constexpr int64_t kMostThreads = 1024;
constexpr int kSpin = 2000;  // pauses: 20 to 80 microseconds
constexpr uint32_t kOne = 1, kSlot = 1u << 16, kRunning = kSlot - 1;

void relax() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#else
  asm volatile("isb");  // about as long; `yield` takes no time
#endif
}

void wait(std::atomic<uint32_t>* word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake(std::atomic<uint32_t>* word, int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

struct Job {
  Task task;
  void* context;
  int64_t count;
  std::atomic<int64_t> next;
};

Job job;
// Threads that may still join the job (upper 16 bits), and threads that are at it (lower 16 bits). The job is only changed
// when both are 0.
std::atomic<uint32_t> state{0};
std::atomic<uint32_t> posted{0};  // jobs so far: what idle threads wait on
std::atomic<uint32_t> asleep{0};  // idle threads that wait on it
std::atomic<uint32_t> caller_asleep{0};
pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;
pthread_once_t once = PTHREAD_ONCE_INIT;
pthread_t threads_made[kMostThreads];
int64_t made = 0;
cpu_set_t affinity;  // of the threads

void take(int64_t thread) {
  for (;;) {
    const int64_t task = job.next.fetch_add(1, std::memory_order_relaxed);
    if (task >= job.count) return;
    job.task(job.context, task, thread);
  }
}

// The number, from 1 on, of a thread that joined the job; 0 where none may. It is the thread's for this job only: which
// memory of the call it may use.
int64_t join() {
  uint32_t seen = state.load();
  while (seen >= kSlot)
    if (state.compare_exchange_weak(seen, seen - kSlot + kOne)) return seen / kSlot;
  return 0;
}

void* idle(void*) {
  const DefaultMode mode;
  for (;;) {
    for (int i = 0; i < kSpin; ++i) {
      if (const int64_t thread = join()) {
        take(thread);
        state.fetch_sub(kOne);
        if (caller_asleep.load()) wake(&state, 1);
        i = 0;
      }
      relax();
    }
    const uint32_t seen = posted.load();
    asleep.fetch_add(1);
    if (state.load() < kSlot) wait(&posted, seen);
    asleep.fetch_sub(1);
  }
  return nullptr;
}

void forget() {  // in a child: none of the threads is there, and whatever they did is not finished
  state = 0;
  posted = 0;
  asleep = 0;
  caller_asleep = 0;
  made = 0;
  calls = PTHREAD_MUTEX_INITIALIZER;
}

void prepare() { pthread_atfork(nullptr, nullptr, forget); }

void start(int64_t wanted) {
  if (made >= wanted) return;
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (const int raised : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&blocked, raised);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 1 << 20);
  for (; made < wanted; ++made) {
    if (pthread_create(&threads_made[made], &attributes, idle, nullptr)) break;
    pthread_setname_np(threads_made[made], "gemmhub-cpu");
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void follow_affinity() {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof mine, &mine) || (made && CPU_EQUAL(&mine, &affinity))) return;
  affinity = mine;
  for (int64_t i = 0; i < made; ++i) pthread_setaffinity_np(threads_made[i], sizeof mine, &mine);
}

}  // namespace

void gemmhub::share(Task task, void* context, int64_t count, int64_t threads) {
  if (threads > count) threads = count;
  if (threads > kMostThreads) threads = kMostThreads;
  if (threads <= 1) {
    for (int64_t i = 0; i < count; ++i) task(context, i, 0);
    return;
  }
  pthread_once(&once, prepare);
  pthread_mutex_lock(&calls);
  follow_affinity();
  start(threads - 1);
  const uint32_t helpers = static_cast<uint32_t>(threads - 1 < made ? threads - 1 : made);
  job.task = task;
  job.context = context;
  job.count = count;
  job.next.store(0);
  state.store(helpers * kSlot);
  posted.fetch_add(1);
  if (asleep.load()) wake(&posted, static_cast<int>(helpers));
  take(0);
  state.fetch_and(kRunning);  // nobody joins any more
  for (int i = 0; i < kSpin && state.load(); ++i) relax();
  if (state.load()) {
    caller_asleep = 1;
    for (uint32_t seen = state.load(); seen; seen = state.load()) wait(&state, seen);
    caller_asleep = 0;
  }
  pthread_mutex_unlock(&calls);
}

int64_t gemmhub::allowed(int64_t wanted) {
  if (wanted <= 1) return 1;
  cpu_set_t mine;
  CPU_ZERO(&mine);
  const int64_t here = sched_getaffinity(0, sizeof mine, &mine) ? 1 : CPU_COUNT(&mine);
  return wanted < here ? wanted : here;
}
