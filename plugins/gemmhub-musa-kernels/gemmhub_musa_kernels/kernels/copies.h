// Asynchronous copies from global into shared memory under the names of musa_pipeline_primitives.h, by what the SDK has.
// toolkit.py finds out which of these compile; the best one is GEMMHUB_COPIES.
#pragma once
#include <musa_runtime.h>

#if GEMMHUB_COPIES == 0  // the SDK's header

#include <musa_pipeline_primitives.h>

#elif GEMMHUB_COPIES == 1 || GEMMHUB_COPIES == 2  // the compiler's functions: with groups of copies, or without

#define GEMMHUB_SHARED __attribute__((address_space(3)))
#define GEMMHUB_GLOBAL __attribute__((address_space(1)))

__device__ __forceinline__ void __pipeline_memcpy_async(void* shared, const void* global, size_t bytes) {
  __musa_memcpy_g2s((void GEMMHUB_SHARED*)shared, (const void GEMMHUB_GLOBAL*)global, int(bytes), 0);
}
#if GEMMHUB_COPIES == 1
__device__ __forceinline__ void __pipeline_commit() { __musa_memcpy_g2s_commit_group(); }
// The count of groups is a constant after inlining.
__device__ __forceinline__ void __pipeline_wait_prior(int groups) {
  if (groups == 0) __musa_memcpy_g2s_wait();
  if (groups == 1) __musa_memcpy_g2s_wait_group(1);
  if (groups == 2) __musa_memcpy_g2s_wait_group(2);
  if (groups >= 3) __musa_memcpy_g2s_wait_group(3);
}
#else
__device__ __forceinline__ void __pipeline_commit() {}
__device__ __forceinline__ void __pipeline_wait_prior(int) { __musa_memcpy_g2s_wait(); }
#endif

#elif GEMMHUB_COPIES == 3  // through registers

__device__ __forceinline__ void __pipeline_memcpy_async(void* shared, const void* global, size_t bytes) {
  if (bytes == 16) *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
  if (bytes == 8) *static_cast<uint2*>(shared) = *static_cast<const uint2*>(global);
  if (bytes == 4) *static_cast<unsigned*>(shared) = *static_cast<const unsigned*>(global);
}
__device__ __forceinline__ void __pipeline_commit() {}
__device__ __forceinline__ void __pipeline_wait_prior(int) {}

#else
#error "GEMMHUB_COPIES must be one of those above"
#endif
