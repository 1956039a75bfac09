// A libmusart for the tests of gemmhub_musa: host memory, two devices, streams that do their work at once. It is
// strict about handles, directions and devices, and fails where FAKE_MUSA_FAIL names a function ("musaMalloc=2").
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

extern "C" {
typedef int musaError_t;
typedef struct MUstream_st* musaStream_t;
typedef struct MUevent_st* musaEvent_t;
struct MUstream_st { int device; };
struct MUevent_st { int device; int recorded; };
}

namespace {
std::recursive_mutex lock;
std::map<char*, std::pair<size_t, int>> heap;
std::set<musaStream_t> streams;
std::set<musaEvent_t> events;
std::string failing;
int devices = 2, copies_2d = 0;
size_t limit = size_t(1) << 30, used = 0;
thread_local int current = 0;
thread_local musaError_t last = 0;

musaError_t done(musaError_t error) {
  if (error) last = error;
  return error;
}

musaError_t planned(const char* name) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  size_t at = failing.find(std::string(name) + "=");
  return at == std::string::npos ? 0 : atoi(failing.c_str() + at + strlen(name) + 1);
}

bool inside(const void* p, size_t n) {
  char* x = (char*)p;
  auto found = heap.upper_bound(x);
  return found != heap.begin() && (--found, x + n <= found->first + found->second.first);
}

musaError_t copy_error(const void* to, const void* from, size_t n, int kind) {
  bool there = inside(to, n), here = inside(from, n);
  switch (kind) {
    case 1: return there && !here ? 0 : 1;
    case 2: return here && !there ? 0 : 1;
    case 3: return there && here ? 0 : 1;
    default: return 21;
  }
}

bool known(musaStream_t stream) { return !stream || streams.count(stream); }
}  // namespace

#define ENTER(name) \
  if (musaError_t planned_error = planned(name)) return done(planned_error); \
  std::lock_guard<std::recursive_mutex> hold(lock)

extern "C" {
void fake_plan(const char* text) { failing = text; }
void fake_limit(size_t bytes) { limit = bytes; }
void fake_devices(int count) { devices = count; }
void fake_set_last(int error) { last = error; }
size_t fake_live() { return heap.size(); }
int fake_device_of(void* p) { return heap.count((char*)p) ? heap[(char*)p].second : -1; }
int fake_copies_2d() { return copies_2d; }

musaError_t musaGetDeviceCount(int* n) {
  ENTER("musaGetDeviceCount");
  *n = devices;
  return devices ? 0 : done(100);
}
musaError_t musaGetDevice(int* device) { *device = current; return 0; }
musaError_t musaSetDevice(int device) {
  ENTER("musaSetDevice");
  if (device < 0 || device >= devices) return done(101);
  current = device;
  return 0;
}
musaError_t musaDeviceGetAttribute(int* value, int attribute, int device) {
  ENTER("musaDeviceGetAttribute");
  if (device < 0 || device >= devices) return done(101);
  switch (attribute) {
    case 1: *value = 1024; return 0;
    case 8: *value = 73728; return 0;
    case 10: *value = 128; return 0;
    case 16: *value = 56; return 0;
    case 38: *value = 1 << 16; return 0;
    case 75: *value = 2; return 0;
    case 76: *value = 2; return 0;
    default: return done(1);
  }
}
musaError_t musaDeviceSynchronize() { ENTER("musaDeviceSynchronize"); return 0; }
musaError_t musaRuntimeGetVersion(int* value) { *value = 4030; return 0; }
musaError_t musaDriverGetVersion(int* value) { *value = 50100; return 0; }
musaError_t musaMalloc(void** p, size_t n) {
  ENTER("musaMalloc");
  if (!n) return done(1);
  if (used + n > limit) return done(2);
  char* memory = (char*)aligned_alloc(256, (n + 255) / 256 * 256);
  memset(memory, 0xff, n);
  heap[memory] = {n, current};
  used += n;
  *p = memory;
  return 0;
}
musaError_t musaFree(void* p) {
  ENTER("musaFree");
  auto found = heap.find((char*)p);
  if (found == heap.end() || found->second.second != current) return done(1);
  used -= found->second.first;
  free(found->first);
  heap.erase(found);
  return 0;
}
musaError_t musaMallocHost(void** p, size_t n) { *p = malloc(n); return 0; }
musaError_t musaFreeHost(void* p) { free(p); return 0; }
musaError_t musaMemGetInfo(size_t* free_bytes, size_t* total) {
  *free_bytes = limit - used;
  *total = limit;
  return 0;
}
musaError_t musaMemcpy(void* to, const void* from, size_t n, int kind) {
  ENTER("musaMemcpy");
  if (musaError_t error = copy_error(to, from, n, kind)) return done(error);
  memcpy(to, from, n);
  return 0;
}
musaError_t musaMemcpyAsync(void* to, const void* from, size_t n, int kind, musaStream_t stream) {
  ENTER("musaMemcpyAsync");
  if (!known(stream)) return done(400);
  if (musaError_t error = copy_error(to, from, n, kind)) return done(error);
  memcpy(to, from, n);
  return 0;
}
musaError_t musaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t pitch, size_t width, size_t height,
                              int kind, musaStream_t stream) {
  ENTER("musaMemcpy2DAsync");
  if (!known(stream)) return done(400);
  if (width > pitch || width > to_pitch) return done(12);
  copies_2d += 1;
  for (size_t row = 0; row < height; row++) {
    char *x = (char*)to + row * to_pitch, *y = (char*)from + row * pitch;
    if (musaError_t error = copy_error(x, y, width, kind)) return done(error);
    memcpy(x, y, width);
  }
  return 0;
}
musaError_t musaMemset(void* p, int value, size_t n) {
  ENTER("musaMemset");
  if (!inside(p, n)) return done(1);
  memset(p, value, n);
  return 0;
}
musaError_t musaMemsetAsync(void* p, int value, size_t n, musaStream_t stream) {
  return known(stream) ? musaMemset(p, value, n) : done(400);
}
musaError_t musaStreamCreate(musaStream_t* stream) {
  ENTER("musaStreamCreate");
  *stream = new MUstream_st{current};
  streams.insert(*stream);
  return 0;
}
musaError_t musaStreamCreateWithFlags(musaStream_t* stream, unsigned) { return musaStreamCreate(stream); }
musaError_t musaStreamDestroy(musaStream_t stream) {
  ENTER("musaStreamDestroy");
  if (!streams.erase(stream)) return done(400);
  delete stream;
  return 0;
}
musaError_t musaStreamSynchronize(musaStream_t stream) { ENTER("musaStreamSynchronize"); return known(stream) ? 0 : done(400); }
musaError_t musaStreamWaitEvent(musaStream_t stream, musaEvent_t event, unsigned flags) {
  return known(stream) && events.count(event) && !flags ? 0 : done(400);
}
musaError_t musaEventCreate(musaEvent_t* event) {
  ENTER("musaEventCreate");
  *event = new MUevent_st{current, 0};
  events.insert(*event);
  return 0;
}
musaError_t musaEventDestroy(musaEvent_t event) {
  if (!events.erase(event)) return done(400);
  delete event;
  return 0;
}
musaError_t musaEventRecord(musaEvent_t event, musaStream_t stream) {
  static int clock = 0;
  if (!events.count(event) || !known(stream) || event->device != current) return done(400);
  event->recorded = ++clock;
  return 0;
}
musaError_t musaEventSynchronize(musaEvent_t event) { return events.count(event) ? 0 : done(400); }
musaError_t musaEventElapsedTime(float* ms, musaEvent_t start, musaEvent_t end) {
  if (!events.count(start) || !events.count(end)) return done(400);
  if (!start->recorded || !end->recorded) return done(600);
  *ms = 0.5f * (end->recorded - start->recorded);
  return 0;
}
musaError_t musaGetLastError() {
  musaError_t error = last;
  last = 0;
  return error;
}
musaError_t musaPeekAtLastError() { return last; }
const char* musaGetErrorName(musaError_t error) {
  switch (error) {
    case 0: return "musaSuccess";
    case 1: return "musaErrorInvalidValue";
    case 2: return "musaErrorMemoryAllocation";
    case 101: return "musaErrorInvalidDevice";
    case 400: return "musaErrorInvalidResourceHandle";
    case 700: return "musaErrorIllegalAddress";
    case 801: return "musaErrorNotSupported";
    default: return nullptr;
  }
}
const char* musaGetErrorString(musaError_t error) { return error == 2 ? "out of memory" : "some other trouble"; }
}
