// libmusart for the CUDA engine: CUDA's runtime under MUSA's names. Numbers of errors, attributes and flags agree.
// It has no functions that ask about kernels: a kernel is known to the runtime that its own library is linked with.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#define FORWARD(name, parameters, arguments) \
  extern "C" int musa##name parameters { return static_cast<int>(cuda##name arguments); }

FORWARD(GetDeviceCount, (int* count), (count))
FORWARD(GetDevice, (int* device), (device))
FORWARD(SetDevice, (int device), (device))
FORWARD(DeviceSynchronize, (), ())
FORWARD(DeviceGetPCIBusId, (char* text, int length, int device), (text, length, device))
FORWARD(GetLastError, (), ())
FORWARD(PeekAtLastError, (), ())
FORWARD(Malloc, (void** p, size_t bytes), (p, bytes))
FORWARD(MallocManaged, (void** p, size_t bytes, unsigned flags), (p, bytes, flags))
FORWARD(MallocHost, (void** p, size_t bytes), (p, bytes))
FORWARD(HostAlloc, (void** p, size_t bytes, unsigned flags), (p, bytes, flags))
FORWARD(Free, (void* p), (p))
FORWARD(FreeHost, (void* p), (p))
FORWARD(MallocAsync, (void** p, size_t bytes, cudaStream_t stream), (p, bytes, stream))
FORWARD(FreeAsync, (void* p, cudaStream_t stream), (p, stream))
FORWARD(MemGetInfo, (size_t* free_bytes, size_t* total), (free_bytes, total))
FORWARD(Memcpy, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind), (to, from, bytes, kind))
FORWARD(MemcpyAsync, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
        (to, from, bytes, kind, stream))
FORWARD(Memcpy2D,
        (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows,
         cudaMemcpyKind kind),
        (to, to_pitch, from, from_pitch, width, rows, kind))
FORWARD(Memcpy2DAsync,
        (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows, cudaMemcpyKind kind,
         cudaStream_t stream),
        (to, to_pitch, from, from_pitch, width, rows, kind, stream))
FORWARD(Memset, (void* p, int value, size_t bytes), (p, value, bytes))
FORWARD(MemsetAsync, (void* p, int value, size_t bytes, cudaStream_t stream), (p, value, bytes, stream))
FORWARD(StreamCreate, (cudaStream_t* stream), (stream))
FORWARD(StreamCreateWithFlags, (cudaStream_t* stream, unsigned flags), (stream, flags))
FORWARD(StreamCreateWithPriority, (cudaStream_t* stream, unsigned flags, int priority), (stream, flags, priority))
FORWARD(StreamDestroy, (cudaStream_t stream), (stream))
FORWARD(StreamSynchronize, (cudaStream_t stream), (stream))
FORWARD(StreamQuery, (cudaStream_t stream), (stream))
FORWARD(StreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags), (stream, event, flags))
FORWARD(EventCreate, (cudaEvent_t* event), (event))
FORWARD(EventCreateWithFlags, (cudaEvent_t* event, unsigned flags), (event, flags))
FORWARD(EventDestroy, (cudaEvent_t event), (event))
FORWARD(EventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
FORWARD(EventQuery, (cudaEvent_t event), (event))
FORWARD(EventSynchronize, (cudaEvent_t event), (event))
FORWARD(EventElapsedTime, (float* milliseconds, cudaEvent_t start, cudaEvent_t end), (milliseconds, start, end))
FORWARD(LaunchKernel, (const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream),
        (kernel, grid, block, arguments, shared, stream))

// The device says that it is the architecture that the simulator's would be (MUSA_SIM_ARCH): kernels are chosen by it.
// Everything else it says is the GPU's, warps of 32 threads too.
extern "C" int musaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const cudaError_t error = cudaDeviceGetAttribute(value, attribute, device);
  if (error != cudaSuccess) return error;
  const char* chosen = std::getenv("MUSA_SIM_ARCH");
  const int arch = chosen && *chosen ? std::atoi(chosen) : 22;
  if (attribute == cudaDevAttrComputeCapabilityMajor) *value = arch / 10;
  if (attribute == cudaDevAttrComputeCapabilityMinor) *value = arch % 10;
  return cudaSuccess;
}

// Of the SDK generation that the home stands for (recipe.py).
extern "C" int musaRuntimeGetVersion(int* version) {
  *version = MUSA_SIM_SDK_NUMBER;
  return 0;
}
extern "C" int musaDriverGetVersion(int* version) { return musaRuntimeGetVersion(version); }

// "cudaErrorInvalidValue" is musaErrorInvalidValue here.
extern "C" const char* musaGetErrorName(cudaError_t error) {
  static std::mutex lock;
  static std::map<cudaError_t, std::string> names;
  const std::lock_guard<std::mutex> guard(lock);
  std::string& name = names[error];
  if (name.empty()) name = cudaGetErrorName(error);
  if (name.compare(0, 4, "cuda") == 0) name.replace(0, 4, "musa");
  return name.c_str();
}
extern "C" const char* musaGetErrorString(cudaError_t error) { return cudaGetErrorString(error); }
