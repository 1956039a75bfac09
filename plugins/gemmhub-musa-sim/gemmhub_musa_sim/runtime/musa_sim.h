/* What the simulated libmusart offers beyond the vendor's names: for the stub libraries (muBLAS,
 * muDNN), for code compiled by the simulator's mcc, and for tests by ctypes. Plain C. No program for a real card may
 * use any of this.
 *
 * Options (environment MUSA_SIM_<NAME>, read when the library is loaded; musaSimSetOption changes one later):
 *   LAZY      1   work on streams runs as late as the ordering rules allow; 0: at once
 *   DEVICES   1   number of devices
 *   ARCH     22   architecture of the devices: 21, 22 (warps of 128 threads) or 31 (warps of 32)
 *   WORKERS   2   processes that share the blocks of a launch; 0: this one (for a debugger: a fault kills it)
 *   SEED      0   other than 0: blocks start, and threads continue after barriers, in an order shuffled by this seed
 *   ASYNC     1   asynchronous copies into shared memory arrive at once (0), when waited for (1), or at random (2)
 *   LAYOUT    0   which of two layouts the elements of a wmma fragment have
 *   LOCKSTEP  0   1: store_matrix_sync also orders what follows it, as a warp in lock step does
 *   POISON    1   fresh device and shared memory is filled with NaN
 *   ALIGN   256   alignment of device allocations in bytes, down to 16; what is left to the page's end is a canary
 *   TIMEOUT  60   seconds after which a kernel is ended (musaErrorLaunchTimeout)
 *   COUNT     0   1: instrumented kernels count memory transactions (counters.py)
 *   QUIET     0   1: faults are not described on stderr (musaSimMessage has the text all the same)
 * MUSA_SIM_FAIL="musaMalloc:2,mublasGemmEx" injects failures, as musaSimInject does.
 */
#ifndef MUSA_SIM_H
#define MUSA_SIM_H
#include <stddef.h>

#include "driver_types.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* Run fn(arg) in order on a stream of the calling thread's current device: later, at the latest at a synchronisation.
 * fn frees arg. Returns 0 or a musaError_t (400: unknown or destroyed stream, or one of another device; 700...: the
 * device is lost); then fn is not called. */
int musaSimEnqueue(musaStream_t stream, void (*fn)(void*), void* arg);

/* Bytes from p to the end of the live device allocation that holds it; 0 for anything else. */
size_t musaSimExtent(const void* p);
/* The device that p was allocated on; -1 for anything else. */
int musaSimDeviceOf(const void* p);
/* 1 for live streams and for the built-in handles (0, 1 = legacy, 2 = per thread). */
int musaSimStreamAlive(musaStream_t stream);

/* Errors that a kernel's fault leaves (700, 702, 710, 714...719) lose the device: every call returns them until
 * musaSimReset. Any other number is left as this thread's last error until musaGetLastError. 0 clears both. */
void musaSimSetSticky(int error);
/* All queued work is done, the lost device is back, errors, injections and the memory limit are gone; allocations,
 * streams and events stay. */
void musaSimReset(void);

/* Asked by every double at its entry: 1 when a failure was injected for this call of `function`. */
int musaSimShouldFail(const char* function);
/* "name" fails every call, "name:3" only the third from now; several with commas between; "" clears all. */
void musaSimInject(const char* spec);

/* Live device allocations, and streams and events not destroyed. */
size_t musaSimLive(void);
size_t musaSimLiveHandles(void);
/* Most bytes that a device gives out (0: its own limit). */
void musaSimLimit(size_t bytes);

/* Set an option by its name above; 0 when there is none of that name. */
int musaSimSetOption(const char* name, int value);
int musaSimGetOption(const char* name, int* value);

/* What the last fault, or failed launch, was, in words; "" when there was none since musaSimReset. */
const char* musaSimMessage(void);
/* JSON: the findings of the checker, and the counters, since the last clear (checks.py, counters.py). */
const char* musaSimReports(void);
const char* musaSimCounters(void);
void musaSimClear(void);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
