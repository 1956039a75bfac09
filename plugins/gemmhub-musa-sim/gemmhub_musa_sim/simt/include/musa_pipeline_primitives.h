/* Asynchronous copies from global into shared memory. */
#ifndef MUSA_SIM_PIPELINE_H
#define MUSA_SIM_PIPELINE_H
#include "musa_runtime.h"

MUSA_SIM_INLINE void __pipeline_memcpy_async(void* shared, const void* global, size_t bytes, size_t zero_fill = 0) {
  musaSimCopy(shared, global, bytes, zero_fill);
}
MUSA_SIM_INLINE void __pipeline_commit() { musaSimCommit(); }
MUSA_SIM_INLINE void __pipeline_wait_prior(size_t batches) { musaSimWait(batches); }

#endif
