// Callers of the pool that share it: a task that does not end until another caller's tasks have ended, so that a caller
// which waited for a whole job of another would wait for ever. The argument is the name of the case.
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "../gemmhub_cpu/kernels/pool.h"

namespace {

using gemmhub::share;

constexpr int kCallers = 40;  // more than the pool has slots for jobs
std::atomic<int64_t> begun{0}, done{0}, by_helpers{0};
std::atomic<bool> released{false};

void await_release(void*, int64_t, int64_t) {
  ++begun;
  while (!released) sched_yield();
  ++done;
}

void count(void*, int64_t, int64_t) { ++done; }

// Ends when a thread of the pool has taken a task of this job too.
void await_helper(void*, int64_t, int64_t thread) {
  released = true;
  if (thread) ++by_helpers;
  while (!by_helpers) sched_yield();
  ++done;
}

void* hold(void*) {
  share(await_release, nullptr, 2, 2);
  return nullptr;
}

pthread_t started(void* (*function)(void*)) {
  pthread_t thread;
  pthread_create(&thread, nullptr, function, nullptr);
  return thread;
}

// Both threads of the first caller are at tasks that end after the second caller's.
bool second_caller() {
  const pthread_t first = started(hold);
  while (begun < 2) sched_yield();
  share(count, nullptr, 1000, 2);
  const bool fine = done == 1000;
  released = true;
  pthread_join(first, nullptr);
  return fine && done == 1002;
}

// The second caller begins alone; the thread that the first one releases joins it.
bool late_helper() {
  const pthread_t first = started(hold);
  while (begun < 2) sched_yield();
  share(await_helper, nullptr, 2, 2);
  pthread_join(first, nullptr);
  return done == 4 && by_helpers == 1;
}

// Each caller's first task ends when every caller is at one.
void* meet(void*) {
  share([](void*, int64_t task, int64_t) {
    if (task == 0 && ++begun == kCallers) released = true;
    while (task == 0 && !released) sched_yield();
    ++done;
  }, nullptr, 8, 3);
  return nullptr;
}

bool many_callers() {
  pthread_t threads[kCallers];
  for (pthread_t& thread : threads) thread = started(meet);
  for (const pthread_t& thread : threads) pthread_join(thread, nullptr);
  return done == 8 * kCallers;
}

}  // namespace

int main(int, char** arguments) {
  const char* const name = arguments[1];
  const bool fine = !std::strcmp(name, "second caller") ? second_caller()
                    : !std::strcmp(name, "late helper") ? late_helper()
                                                        : many_callers();
  std::printf("%lld tasks\n", static_cast<long long>(done.load()));
  return fine ? 0 : 1;
}
