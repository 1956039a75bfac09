// Streams as a graph of operations: each runs after the one before it in its stream, and after what else it must wait
// for. Nothing runs before a synchronisation demands it, so a program that forgot one sees old data.
#pragma once
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "driver_types.h"

namespace musa_sim {

struct Operation {
  std::function<void()> work;  // empty once done
  std::vector<std::shared_ptr<Operation>> after;
  int device = 0;
  bool blocking = true;  // ordered with the legacy default stream
};

using OperationRef = std::shared_ptr<Operation>;

}  // namespace musa_sim

// The tags of the vendor's handles.
struct MUstream_st {
  int device = 0;
  bool blocking = true;  // ordered with the legacy default stream
  musa_sim::OperationRef last;
};

struct MUevent_st {
  int device = 0;
  bool timed = true;
  musa_sim::OperationRef recorded;  // null: never recorded
  std::shared_ptr<double> seconds;  // when `recorded` ran
};

namespace musa_sim {

// The stream behind a handle (built-in ones included); null when it is not alive.
MUstream_st* find_stream(musaStream_t handle);
MUstream_st* legacy_stream(int device);
bool event_alive(musaEvent_t event);

// Queue work; 400 when the stream is unknown or belongs to a device that is not current.
musaError_t enqueue(musaStream_t stream, std::function<void()> work, OperationRef* queued = nullptr);

void run(const OperationRef& operation);
void run_device(int device);
void run_everything();
bool done(const OperationRef& operation);

}  // namespace musa_sim
