// Threads that share the tasks of a call and sleep between calls.
#pragma once

#include <cstdint>

namespace gemmhub {

using Task = void (*)(void* context, int64_t task, int64_t thread);

// Runs tasks 0 to `count` - 1, each once, on at most `threads` threads, the calling one among them (thread 0), which is in
// DefaultMode (mode.h). Returns when all are done. Calls from several threads share the other threads, and wait for none of
// each other's tasks.
void share(Task task, void* context, int64_t count, int64_t threads);

// Of `wanted` threads, as many as there are processors that the calling thread may run on now; 1 at least.
int64_t allowed(int64_t wanted);

}  // namespace gemmhub
