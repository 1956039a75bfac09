// The memory functions of the API: allocation, copies, fills.
#include <cerrno>
#include <cstring>
#include <sys/uio.h>
#include <unistd.h>

#include "heap.hpp"
#include "musa_runtime_api.h"
#include "musa_sim.h"
#include "options.hpp"
#include "state.hpp"
#include "streams.hpp"

namespace musa_sim {

namespace {

musaError_t give(void** p, size_t bytes, int device, bool host_readable) {
  if (!p) return fail(musaErrorInvalidValue);
  *p = nullptr;
  if (bytes == 0) return musaSuccess;
  if (device >= 0 && !options.devices) return fail(musaErrorNoDevice);
  *p = allocate(bytes, device, host_readable);
  return *p ? musaSuccess : fail(musaErrorMemoryAllocation);
}

musaError_t take(void* p, bool device_memory) {
  if (!p) return musaSuccess;
  const auto found = heap.find(reinterpret_cast<uintptr_t>(p));
  if (found == heap.end() || (found->second.device >= 0) != device_memory) return fail(musaErrorInvalidValue);
  run_everything();  // freeing waits for the device
  release(reinterpret_cast<uintptr_t>(p));
  return musaSuccess;
}

// A block of rows: `rows` times `width` bytes, `pitch` bytes apart.
struct Span {
  const void* start;
  size_t pitch, width, rows;
  size_t bytes() const { return rows && width ? pitch * (rows - 1) + width : 0; }
};

enum class Side { kHost, kDevice, kEither };

// May the span be what the direction of a copy says it is?
bool fits(const Span& span, Side side) {
  if (!span.start) return false;
  uintptr_t start = 0;
  const Allocation* allocation = holder(span.start, &start);
  if (!allocation) return side != Side::kDevice && !musaSimExtent(span.start);
  if (reinterpret_cast<uintptr_t>(span.start) + span.bytes() > start + allocation->bytes) return false;
  if (side == Side::kHost) return allocation->host_readable;
  return side == Side::kEither || allocation->device >= 0;
}

musaError_t check_copy(const Span& to, const Span& from, int kind) {
  if (kind < musaMemcpyHostToHost || kind > musaMemcpyDefault) return musaErrorInvalidMemcpyDirection;
  constexpr Side kTo[] = {Side::kHost, Side::kDevice, Side::kHost, Side::kDevice, Side::kEither};
  constexpr Side kFrom[] = {Side::kHost, Side::kHost, Side::kDevice, Side::kDevice, Side::kEither};
  return fits(to, kTo[kind]) && fits(from, kFrom[kind]) ? musaSuccess : musaErrorInvalidValue;
}

// Host memory may be gone by the time a queued copy runs: the system call then says so, where memcpy would crash.
bool copy_bytes(void* to, const void* from, size_t bytes) {
  const iovec target{to, bytes}, source{const_cast<void*>(from), bytes};
  const bool to_device = holder(to) != nullptr;
  const ssize_t moved = to_device ? process_vm_readv(getpid(), &target, 1, &source, 1, 0)
                                  : process_vm_writev(getpid(), &source, 1, &target, 1, 0);
  if (moved == static_cast<ssize_t>(bytes)) return true;
  if (moved < 0 && errno == EFAULT) return false;
  std::memcpy(to, from, bytes);  // the system call is not allowed here, or was cut short by its size limit
  return true;
}

void copy_rows(const Span& to, const Span& from) {
  for (size_t row = 0; row < from.rows; row++) {
    char* target = static_cast<char*>(const_cast<void*>(to.start)) + row * to.pitch;
    const char* source = static_cast<const char*>(from.start) + row * from.pitch;
    if (copy_bytes(target, source, from.width)) continue;
    lose_device(musaErrorIllegalAddress, "a queued copy ran after its host memory had been freed");
    return;
  }
}

musaError_t copy(const Span& to, const Span& from, int kind, musaStream_t stream, bool wait) {
  if (from.bytes() == 0) return musaSuccess;
  if (from.pitch < from.width || to.pitch < to.width) return fail(musaErrorInvalidValue);
  if (const musaError_t error = check_copy(to, from, kind)) return fail(error);
  OperationRef queued;
  if (const musaError_t error = enqueue(stream, [to, from] { copy_rows(to, from); }, &queued)) return fail(error);
  if (wait) run(queued);
  return fail(device_lost());
}

Span line(const void* start, size_t bytes) { return {start, bytes, bytes, 1}; }

musaError_t fill(void* p, int value, size_t bytes, musaStream_t stream) {
  if (bytes == 0) return musaSuccess;
  if (!fits(line(p, bytes), Side::kDevice)) return fail(musaErrorInvalidValue);
  return fail(enqueue(stream, [=] { std::memset(p, value, bytes); }));
}

}  // namespace

}  // namespace musa_sim

using namespace musa_sim;

extern "C" {

musaError_t musaMalloc(void** p, size_t bytes) {
  MUSA_SIM_CALL(musaErrorMemoryAllocation);
  return give(p, bytes, current_device(), false);
}

musaError_t musaMallocManaged(void** p, size_t bytes, unsigned flags) {
  MUSA_SIM_CALL(musaErrorMemoryAllocation);
  static_cast<void>(flags);
  return give(p, bytes, current_device(), true);
}

musaError_t musaMallocHost(void** p, size_t bytes) {
  MUSA_SIM_CALL(musaErrorMemoryAllocation);
  return give(p, bytes, -1, true);
}

musaError_t musaHostAlloc(void** p, size_t bytes, unsigned flags) {
  MUSA_SIM_CALL(musaErrorMemoryAllocation);
  static_cast<void>(flags);
  return give(p, bytes, -1, true);
}

musaError_t musaFree(void* p) {
  MUSA_SIM_CALL();
  return take(p, true);
}

musaError_t musaFreeHost(void* p) {
  MUSA_SIM_CALL();
  return take(p, false);
}

musaError_t musaMemcpy(void* to, const void* from, size_t bytes, musaMemcpyKind kind) {
  MUSA_SIM_CALL();
  return copy(line(to, bytes), line(from, bytes), kind, nullptr, true);
}

musaError_t musaMemcpyAsync(void* to, const void* from, size_t bytes, musaMemcpyKind kind, musaStream_t stream) {
  MUSA_SIM_CALL();
  return copy(line(to, bytes), line(from, bytes), kind, stream, false);
}

musaError_t musaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows,
                         musaMemcpyKind kind) {
  MUSA_SIM_CALL();
  return copy({to, to_pitch, width, rows}, {from, from_pitch, width, rows}, kind, nullptr, true);
}

musaError_t musaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t rows, musaMemcpyKind kind, musaStream_t stream) {
  MUSA_SIM_CALL();
  return copy({to, to_pitch, width, rows}, {from, from_pitch, width, rows}, kind, stream, false);
}

musaError_t musaMemset(void* p, int value, size_t bytes) {
  MUSA_SIM_CALL();
  return fill(p, value, bytes, nullptr);
}

musaError_t musaMemsetAsync(void* p, int value, size_t bytes, musaStream_t stream) {
  MUSA_SIM_CALL();
  return fill(p, value, bytes, stream);
}

}  // extern "C"
