// The compiler's functions for asynchronous copies, by the simulator's.
#include <musa_runtime.h>

#define __musa_memcpy_g2s gemmhub_test_copy
#define __musa_memcpy_g2s_commit_group musaSimCommit
#define __musa_memcpy_g2s_wait_group gemmhub_test_wait_group
#define __musa_memcpy_g2s_wait gemmhub_test_wait

__device__ inline void gemmhub_test_copy(void* shared, const void* global, int bytes, int) {
  musaSimCopy(shared, global, size_t(bytes), 0);
}
__device__ inline void gemmhub_test_wait_group(int groups) { musaSimWait(size_t(groups)); }
// Waits for all copies so far, in a group or not.
__device__ inline void gemmhub_test_wait() {
  musaSimCommit();
  musaSimWait(0);
}
