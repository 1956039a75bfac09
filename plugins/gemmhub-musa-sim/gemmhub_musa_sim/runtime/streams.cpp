#include "streams.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "device.hpp"
#include "musa_runtime_api.h"
#include "musa_sim.h"
#include "options.hpp"
#include "state.hpp"

namespace musa_sim {

namespace {

std::set<MUstream_st*> streams;  // made by the program
std::set<MUevent_st*> events;
std::map<int, MUstream_st> legacy;  // built in, one for each device
std::map<std::pair<std::thread::id, int>, MUstream_st> per_thread;  // and for each thread
std::vector<OperationRef> pending;              // in the order in which the program queued them

// A device makes progress of its own accord when this much waits.
constexpr size_t kMostPending = 1024;

void forget_done() {
  pending.erase(std::remove_if(pending.begin(), pending.end(), done), pending.end());
}

MUstream_st* built_in(MUstream_st& stream, int device) {
  stream.device = device;
  return &stream;
}

// All operations that one in the legacy default stream waits for, those of destroyed streams among them.
std::vector<OperationRef> blocking_work(int device) {
  std::vector<OperationRef> found;
  for (const OperationRef& operation : pending)
    if (operation->device == device && operation->blocking && !done(operation)) found.push_back(operation);
  return found;
}

// Runs pending operations of a device (or of all, -1), the youngest first: streams that nothing orders then run in
// the order that a program is least likely to expect.
void run_pending(int device) {
  std::vector<OperationRef> order(pending.rbegin(), pending.rend());
  if (options.seed) std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(options.seed)));
  for (const OperationRef& operation : order)
    if (device < 0 || operation->device == device) run(operation);
  forget_done();
}

}  // namespace

MUstream_st* legacy_stream(int device) { return built_in(legacy[device], device); }

MUstream_st* find_stream(musaStream_t handle) {
  if (!handle || handle == musaStreamLegacy) return legacy_stream(current_device());
  if (handle == musaStreamPerThread) {
    const int device = current_device();
    return built_in(per_thread[{std::this_thread::get_id(), device}], device);
  }
  return streams.count(handle) ? handle : nullptr;
}

bool event_alive(musaEvent_t event) { return events.count(event) != 0; }

bool done(const OperationRef& operation) { return !operation || !operation->work; }

musaError_t enqueue(musaStream_t handle, std::function<void()> work, OperationRef* queued) {
  if (device_lost()) return device_lost();
  MUstream_st* stream = find_stream(handle);
  if (!stream || stream->device != current_device()) return musaErrorInvalidResourceHandle;
  auto operation = std::make_shared<Operation>();
  operation->work = std::move(work);
  operation->device = stream->device;
  operation->blocking = stream->blocking;
  if (!done(stream->last)) operation->after.push_back(stream->last);
  const MUstream_st* default_stream = legacy_stream(stream->device);
  if (stream == default_stream) {
    for (OperationRef& before : blocking_work(stream->device)) operation->after.push_back(std::move(before));
  } else if (stream->blocking && !done(default_stream->last)) {
    operation->after.push_back(default_stream->last);
  }
  stream->last = operation;
  pending.push_back(operation);
  if (queued) *queued = operation;
  if (!options.lazy) run(operation);
  if (pending.size() > kMostPending) {
    const std::vector<OperationRef> oldest(pending.begin(), pending.begin() + kMostPending / 2);
    for (const OperationRef& old : oldest) run(old);
    forget_done();
  }
  return musaSuccess;
}

void run(const OperationRef& wanted) {
  if (done(wanted)) return;
  const OperationRef operation = wanted;
  // A chain is as long as the pending list at most, so the recursion is shallow.
  for (const OperationRef& before : operation->after) run(before);
  operation->after.clear();
  if (done(operation)) return;
  const std::function<void()> work = std::move(operation->work);
  operation->work = nullptr;
  work();
}

void run_device(int device) { run_pending(device); }
void run_everything() { run_pending(-1); }

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static musaError_t new_stream(musaStream_t* stream, unsigned flags) {
  if (!stream || flags > musaStreamNonBlocking) return fail(musaErrorInvalidValue);
  *stream = new MUstream_st{current_device(), flags != musaStreamNonBlocking, nullptr};
  streams.insert(*stream);
  return musaSuccess;
}

static musaError_t new_event(musaEvent_t* event, unsigned flags) {
  if (!event || flags > 7) return fail(musaErrorInvalidValue);
  *event = new MUevent_st{current_device(), !(flags & musaEventDisableTiming), nullptr, nullptr};
  events.insert(*event);
  return musaSuccess;
}

// Something that polls must see progress in the end: the first question finds the work still running.
static musaError_t query(const OperationRef& operation) {
  if (done(operation)) return fail(device_lost());
  run(operation);
  forget_done();
  return musaErrorNotReady;
}

}  // namespace musa_sim

using namespace musa_sim;

extern "C" {

int musaSimEnqueue(musaStream_t stream, void (*fn)(void*), void* arg) {
  std::lock_guard guard(big_lock);
  return fail(enqueue(stream, [fn, arg] { fn(arg); }));
}

int musaSimStreamAlive(musaStream_t stream) {
  std::lock_guard guard(big_lock);
  return find_stream(stream) != nullptr;
}

size_t musaSimLiveHandles(void) {
  std::lock_guard guard(big_lock);
  return streams.size() + events.size();
}

musaError_t musaStreamCreate(musaStream_t* stream) {
  MUSA_SIM_CALL(musaErrorMemoryAllocation);
  return new_stream(stream, musaStreamDefault);
}

musaError_t musaStreamCreateWithFlags(musaStream_t* stream, unsigned flags) {
  MUSA_SIM_CALL(musaErrorMemoryAllocation);
  return new_stream(stream, flags);
}

musaError_t musaStreamCreateWithPriority(musaStream_t* stream, unsigned flags, int priority) {
  MUSA_SIM_CALL(musaErrorMemoryAllocation);
  static_cast<void>(priority);
  return new_stream(stream, flags);
}

musaError_t musaStreamDestroy(musaStream_t stream) {
  MUSA_SIM_CALL();
  if (!streams.erase(stream)) return fail(musaErrorInvalidResourceHandle);
  delete stream;  // its work stays in the pending list and still runs
  return musaSuccess;
}

musaError_t musaStreamSynchronize(musaStream_t handle) {
  MUSA_SIM_CALL();
  MUstream_st* stream = find_stream(handle);
  if (!stream) return fail(musaErrorInvalidResourceHandle);
  run(stream->last);
  forget_done();
  return fail(device_lost());
}

musaError_t musaStreamQuery(musaStream_t handle) {
  MUSA_SIM_CALL();
  MUstream_st* stream = find_stream(handle);
  return stream ? query(stream->last) : fail(musaErrorInvalidResourceHandle);
}

musaError_t musaStreamWaitEvent(musaStream_t handle, musaEvent_t event, unsigned flags) {
  MUSA_SIM_CALL();
  MUstream_st* stream = find_stream(handle);
  if (flags) return fail(musaErrorInvalidValue);
  if (!stream || !event_alive(event)) return fail(musaErrorInvalidResourceHandle);
  if (done(event->recorded)) return musaSuccess;
  // The stream may belong to another device than the current one: only launches and records must not.
  auto wait = std::make_shared<Operation>();
  wait->work = [] {};
  wait->device = stream->device;
  wait->blocking = stream->blocking;
  wait->after.push_back(event->recorded);
  if (!done(stream->last)) wait->after.push_back(stream->last);
  stream->last = wait;
  pending.push_back(wait);
  return musaSuccess;
}

musaError_t musaEventCreate(musaEvent_t* event) {
  MUSA_SIM_CALL(musaErrorMemoryAllocation);
  return new_event(event, musaEventDefault);
}

musaError_t musaEventCreateWithFlags(musaEvent_t* event, unsigned flags) {
  MUSA_SIM_CALL(musaErrorMemoryAllocation);
  return new_event(event, flags);
}

musaError_t musaEventDestroy(musaEvent_t event) {
  MUSA_SIM_CALL();
  if (!event_alive(event)) return fail(musaErrorInvalidResourceHandle);
  events.erase(event);
  delete event;
  return musaSuccess;
}

musaError_t musaEventRecord(musaEvent_t event, musaStream_t stream) {
  MUSA_SIM_CALL();
  if (!event_alive(event) || event->device != current_device()) return fail(musaErrorInvalidResourceHandle);
  auto seconds = std::make_shared<double>(0);  // the event may be destroyed, or recorded again, before this runs
  const musaError_t error = enqueue(stream, [seconds] { *seconds = now(); }, &event->recorded);
  if (!error) event->seconds = seconds;
  return fail(error);
}

musaError_t musaEventQuery(musaEvent_t event) {
  MUSA_SIM_CALL();
  return event_alive(event) ? query(event->recorded) : fail(musaErrorInvalidResourceHandle);
}

musaError_t musaEventSynchronize(musaEvent_t event) {
  MUSA_SIM_CALL();
  if (!event_alive(event)) return fail(musaErrorInvalidResourceHandle);
  run(event->recorded);
  forget_done();
  return fail(device_lost());
}

musaError_t musaEventElapsedTime(float* milliseconds, musaEvent_t start, musaEvent_t end) {
  MUSA_SIM_CALL();
  if (!milliseconds) return fail(musaErrorInvalidValue);
  if (!event_alive(start) || !event_alive(end)) return fail(musaErrorInvalidResourceHandle);
  if (!start->timed || !end->timed || !start->seconds || !end->seconds) return fail(musaErrorInvalidResourceHandle);
  if (!done(start->recorded) || !done(end->recorded)) return fail(musaErrorNotReady);
  *milliseconds = static_cast<float>((*end->seconds - *start->seconds) * 1e3);
  return musaSuccess;
}

musaError_t musaGetLastError(void) {
  std::lock_guard guard(big_lock);
  return last_error(true);
}

musaError_t musaPeekAtLastError(void) {
  std::lock_guard guard(big_lock);
  return last_error(false);
}

}  // extern "C"
