/* The MUSA runtime for C++, and under mcc the language's device part. */
#ifndef MUSA_SIM_RUNTIME_H
#define MUSA_SIM_RUNTIME_H
#include "musa_runtime_api.h"

#ifdef __cplusplus
template <class T>
static inline musaError_t musaMalloc(T** p, size_t bytes) {
  return musaMalloc((void**)p, bytes);
}

template <class T>
static inline musaError_t musaMallocManaged(T** p, size_t bytes, unsigned flags = musaMemAttachGlobal) {
  return musaMallocManaged((void**)p, bytes, flags);
}

template <class T>
static inline musaError_t musaMallocHost(T** p, size_t bytes) {
  return musaMallocHost((void**)p, bytes);
}

template <class T>
static inline musaError_t musaHostAlloc(T** p, size_t bytes, unsigned flags) {
  return musaHostAlloc((void**)p, bytes, flags);
}

template <class... P>
static inline musaError_t musaFuncSetAttribute(void (*kernel)(P...), musaFuncAttribute attribute, int value) {
  return musaFuncSetAttribute((const void*)kernel, attribute, value);
}

template <class... P>
static inline musaError_t musaFuncSetSharedMemConfig(void (*kernel)(P...), musaSharedMemConfig config) {
  return musaFuncSetSharedMemConfig((const void*)kernel, config);
}

template <class... P>
static inline musaError_t musaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*kernel)(P...), int threads,
                                                                       size_t dynamic_shared) {
  return musaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, (const void*)kernel, threads, dynamic_shared);
}
#endif

#if defined(__MUSACC__) && defined(__cplusplus)
#include "musa_simt.h"
#endif

#endif
