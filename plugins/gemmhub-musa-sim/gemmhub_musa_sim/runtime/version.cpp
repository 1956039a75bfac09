// What differs between SDK generations; compiled once for each (recipe.py), the rest of the runtime once for all.
#include "musa_runtime_api.h"
#include "musa_sim.h"

#ifndef MUSA_SIM_SDK_NUMBER
#error "MUSA_SIM_SDK_NUMBER: what musaRuntimeGetVersion answers, such as 50100"
#endif

namespace musa_sim {
extern const int sdk_number;
const int sdk_number = MUSA_SIM_SDK_NUMBER;
}  // namespace musa_sim

// Declared by every generation's header, exported from 5.1 on.
#if MUSA_SIM_SDK_NUMBER >= 50100
extern "C" {
musaError_t musaMallocAsync(void** p, size_t bytes, musaStream_t stream) {
  if (!musaSimStreamAlive(stream)) return musaErrorInvalidResourceHandle;
  return musaMalloc(p, bytes);
}

musaError_t musaFreeAsync(void* p, musaStream_t stream) {
  if (!musaSimStreamAlive(stream)) return musaErrorInvalidResourceHandle;
  return musaFree(p);
}
}
#endif
