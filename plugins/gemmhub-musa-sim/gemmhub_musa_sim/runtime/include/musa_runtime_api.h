/* The functions of the MUSA runtime (libmusart), as plain C. */
#ifndef MUSA_SIM_RUNTIME_API_H
#define MUSA_SIM_RUNTIME_API_H
#include "driver_types.h"
#include "musa_version.h"
#include "vector_types.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
#define MUSA_SIM_DEFAULT(value) = value
extern "C" {
#else
#define MUSA_SIM_DEFAULT(value)
#endif

musaError_t musaGetDeviceCount(int* count);
musaError_t musaGetDevice(int* device);
musaError_t musaSetDevice(int device);
musaError_t musaGetDeviceProperties(musaDeviceProp* properties, int device);
musaError_t musaDeviceGetAttribute(int* value, musaDeviceAttr attribute, int device);
musaError_t musaDeviceGetPCIBusId(char* text, int length, int device);
musaError_t musaDeviceSynchronize(void);
musaError_t musaRuntimeGetVersion(int* version);
musaError_t musaDriverGetVersion(int* version);

musaError_t musaGetLastError(void);
musaError_t musaPeekAtLastError(void);
const char* musaGetErrorName(musaError_t error);
const char* musaGetErrorString(musaError_t error);

musaError_t musaMalloc(void** p, size_t bytes);
musaError_t musaMallocManaged(void** p, size_t bytes, unsigned flags MUSA_SIM_DEFAULT(musaMemAttachGlobal));
musaError_t musaMallocHost(void** p, size_t bytes);
musaError_t musaHostAlloc(void** p, size_t bytes, unsigned flags);
musaError_t musaFree(void* p);
musaError_t musaFreeHost(void* p);
musaError_t musaMallocAsync(void** p, size_t bytes, musaStream_t stream);
musaError_t musaFreeAsync(void* p, musaStream_t stream);
musaError_t musaMemGetInfo(size_t* free_bytes, size_t* total);
musaError_t musaMemcpy(void* to, const void* from, size_t bytes, musaMemcpyKind kind);
musaError_t musaMemcpyAsync(void* to, const void* from, size_t bytes, musaMemcpyKind kind,
                            musaStream_t stream MUSA_SIM_DEFAULT(0));
musaError_t musaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows,
                         musaMemcpyKind kind);
musaError_t musaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows,
                              musaMemcpyKind kind, musaStream_t stream MUSA_SIM_DEFAULT(0));
musaError_t musaMemset(void* p, int value, size_t bytes);
musaError_t musaMemsetAsync(void* p, int value, size_t bytes, musaStream_t stream MUSA_SIM_DEFAULT(0));

musaError_t musaStreamCreate(musaStream_t* stream);
musaError_t musaStreamCreateWithFlags(musaStream_t* stream, unsigned flags);
musaError_t musaStreamCreateWithPriority(musaStream_t* stream, unsigned flags, int priority);
musaError_t musaStreamDestroy(musaStream_t stream);
musaError_t musaStreamSynchronize(musaStream_t stream);
musaError_t musaStreamQuery(musaStream_t stream);
musaError_t musaStreamWaitEvent(musaStream_t stream, musaEvent_t event, unsigned flags MUSA_SIM_DEFAULT(0));

musaError_t musaEventCreate(musaEvent_t* event);
musaError_t musaEventCreateWithFlags(musaEvent_t* event, unsigned flags);
musaError_t musaEventDestroy(musaEvent_t event);
musaError_t musaEventRecord(musaEvent_t event, musaStream_t stream MUSA_SIM_DEFAULT(0));
musaError_t musaEventQuery(musaEvent_t event);
musaError_t musaEventSynchronize(musaEvent_t event);
musaError_t musaEventElapsedTime(float* milliseconds, musaEvent_t start, musaEvent_t end);

musaError_t musaFuncSetAttribute(const void* kernel, musaFuncAttribute attribute, int value);
musaError_t musaFuncSetSharedMemConfig(const void* kernel, musaSharedMemConfig config);
musaError_t musaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads,
                                                         size_t dynamic_shared);
#ifdef __cplusplus
musaError_t musaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                             size_t dynamic_shared MUSA_SIM_DEFAULT(0), musaStream_t stream MUSA_SIM_DEFAULT(0));
}
#endif
#pragma GCC visibility pop

#endif
