// Each call posts its tasks as a job in a slot of its own and works at them; idle threads join whichever job has room. A
// call that finds all threads at other jobs does its tasks alone until one of them is idle, and so does one that finds no
// free slot: no call waits for the tasks of another.
//
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

struct alignas(64) Job {
  std::atomic<bool> taken{false};  // by a call
  // Threads that may still join (upper 16 bits), and threads that are at it (lower 16 bits). What follows is only changed
  // when both are 0.
  std::atomic<uint32_t> state{0};
  std::atomic<uint32_t> caller_asleep{0};
  Task task;
  void* context;
  int64_t count;
  cpu_set_t affinity;  // of the calling thread
  std::atomic<int64_t> next;
};

constexpr int kJobs = 16;
Job jobs[kJobs];
std::atomic<uint32_t> posted{0};  // jobs so far: what idle threads wait on
std::atomic<uint32_t> asleep{0};  // idle threads that wait on it
pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;  // guards what follows
pthread_once_t once = PTHREAD_ONCE_INIT;
pthread_t threads_made[kMostThreads];
int64_t made = 0;
cpu_set_t affinity;  // of the threads, but for those at a job of a caller with another
std::atomic<bool> at_work[kMostThreads];

void take(Job* job, int64_t thread) {
  for (;;) {
    const int64_t task = job->next.fetch_add(1, std::memory_order_relaxed);
    if (task >= job->count) return;
    job->task(job->context, task, thread);
  }
}

// The number, from 1 on, of a thread that joined the job; 0 where none may. It is the thread's for this job only: which
// memory of the call it may use.
int64_t join(Job* job) {
  uint32_t seen = job->state.load();
  while (seen >= kSlot)
    if (job->state.compare_exchange_weak(seen, seen - kSlot + kOne)) return seen / kSlot;
  return 0;
}

void adopt(const cpu_set_t& wanted) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (!sched_getaffinity(0, sizeof mine, &mine) && !CPU_EQUAL(&mine, &wanted)) sched_setaffinity(0, sizeof wanted, &wanted);
}

// Works at one job that has room; false where none has.
bool help(std::atomic<bool>* busy) {
  for (Job& job : jobs) {
    const int64_t thread = join(&job);
    if (!thread) continue;
    busy->store(true);
    adopt(job.affinity);
    take(&job, thread);
    busy->store(false);
    job.state.fetch_sub(kOne);
    if (job.caller_asleep.load()) wake(&job.state, 1);
    return true;
  }
  return false;
}

bool any_room() {
  for (const Job& job : jobs)
    if (job.state.load() >= kSlot) return true;
  return false;
}

void* idle(void* busy) {
  const DefaultMode mode;
  for (;;) {
    for (int i = 0; i < kSpin; ++i) {
      if (help(static_cast<std::atomic<bool>*>(busy))) i = 0;
      relax();
    }
    const uint32_t seen = posted.load();
    asleep.fetch_add(1);
    if (!any_room()) wait(&posted, seen);
    asleep.fetch_sub(1);
  }
  return nullptr;
}

void forget() {  // in a child: none of the threads is there, and whatever they did is not finished
  for (Job& job : jobs) {
    job.taken = false;
    job.state = 0;
    job.caller_asleep = 0;
  }
  for (int64_t i = 0; i < made; ++i) at_work[i] = false;
  posted = 0;
  asleep = 0;
  made = 0;
  starting = PTHREAD_MUTEX_INITIALIZER;
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
    if (pthread_create(&threads_made[made], &attributes, idle, &at_work[made])) break;
    pthread_setname_np(threads_made[made], "gemmhub-cpu");
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Gives the threads that are idle the affinity of the calling thread before they wake: on a processor of another they
// might have to wait.
void follow_affinity(const cpu_set_t& mine) {
  if (made && CPU_EQUAL(&mine, &affinity)) return;
  affinity = mine;
  for (int64_t i = 0; i < made; ++i)
    if (!at_work[i].load()) pthread_setaffinity_np(threads_made[i], sizeof mine, &mine);
}

// How many threads there are after `wanted` were to be started, each with the affinity `mine`.
int64_t ready(int64_t wanted, const cpu_set_t& mine) {
  pthread_once(&once, prepare);
  pthread_mutex_lock(&starting);
  follow_affinity(mine);
  start(wanted);
  const int64_t count = wanted < made ? wanted : made;
  pthread_mutex_unlock(&starting);
  return count;
}

Job* free_job() {
  for (Job& job : jobs)
    if (!job.taken.exchange(true)) return &job;
  return nullptr;
}

// The tasks of `job`, whose state is 0, by this thread and at most `helpers` others.
void work_at(Job* job, int64_t helpers) {
  job->next.store(0);
  job->state.store(static_cast<uint32_t>(helpers) * kSlot);
  posted.fetch_add(1);
  if (asleep.load()) wake(&posted, static_cast<int>(helpers));
  take(job, 0);
  job->state.fetch_and(kRunning);  // no thread joins any more
  for (int i = 0; i < kSpin && job->state.load(); ++i) relax();
  if (job->state.load()) {
    job->caller_asleep = 1;
    for (uint32_t seen = job->state.load(); seen; seen = job->state.load()) wait(&job->state, seen);
    job->caller_asleep = 0;
  }
}

}  // namespace

void gemmhub::share(Task task, void* context, int64_t count, int64_t threads) {
  if (threads > count) threads = count;
  if (threads > kMostThreads) threads = kMostThreads;
  cpu_set_t mine;
  CPU_ZERO(&mine);
  Job* const job = threads > 1 && !sched_getaffinity(0, sizeof mine, &mine) ? free_job() : nullptr;
  if (!job) {
    for (int64_t i = 0; i < count; ++i) task(context, i, 0);
    return;
  }
  job->task = task;
  job->context = context;
  job->count = count;
  job->affinity = mine;
  work_at(job, ready(threads - 1, mine));
  job->taken.store(false);
}

int64_t gemmhub::allowed(int64_t wanted) {
  if (wanted <= 1) return 1;
  cpu_set_t mine;
  CPU_ZERO(&mine);
  const int64_t here = sched_getaffinity(0, sizeof mine, &mine) ? 1 : CPU_COUNT(&mine);
  return wanted < here ? wanted : here;
}
