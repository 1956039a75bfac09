/* Between the device headers, compiled into kernels, and the SIMT engine in libmusart. Plain C names, so that a kernel
 * needs nothing but libmusart. */
#ifndef MUSA_SIM_DEVICE_H
#define MUSA_SIM_DEVICE_H
#include <stddef.h>

#include "driver_types.h"
#include "vector_types.h"

#pragma GCC visibility push(default)
extern "C" {

/* Where the running thread is; set whenever the engine turns to another thread. */
extern const uint3 threadIdx __asm__("musaSimThreadIdx");
extern const uint3 blockIdx __asm__("musaSimBlockIdx");
extern const dim3 blockDim __asm__("musaSimBlockDim");
extern const dim3 gridDim __asm__("musaSimGridDim");

/* A kernel, as a launch needs it. */
struct MusaSimKernel {
  const void* function;
  const char* name; /* null where nobody knows */
  void (*call)(const void* function, void** arguments);
  const size_t* sizes; /* of the arguments, in bytes */
  unsigned count;
  int arch;         /* what mcc compiled it for: 22 for mp_22 */
  int instrumented; /* compiled with the checker's hooks */
};

/* musaLaunchKernel finds registered kernels by their address alone. */
void musaSimRegister(const struct MusaSimKernel* kernel);
void musaSimUnregister(const struct MusaSimKernel* kernel);
musaError_t musaSimLaunch(const struct MusaSimKernel* kernel, dim3 grid, dim3 block, void** arguments,
                          size_t dynamic_shared, musaStream_t stream);

/* Barriers. The place tells barriers apart: all threads of a block must wait at the same one. */
void musaSimBarrier(const char* file, unsigned line);
int musaSimBarrierReduce(const char* file, unsigned line, int predicate, int operation); /* 0 count, 1 and, 2 or */
void musaSimWarpBarrier(void);

/* Collectives: all lanes of a group of `width` threads take part. */
struct MusaSimExchange {
  alignas(64) float a[32 * 32];
  alignas(64) float b[32 * 32];
  alignas(64) float c[32 * 32];
  unsigned long long words[128];
  int multiplied;
};
unsigned musaSimLane(unsigned width);
/* The area of the group's next collective; fails when a lane names another operation, pointer or leading dimension. */
struct MusaSimExchange* musaSimJoin(unsigned width, const char* operation, const void* pointer, long ld);
/* Waits for all lanes. Orders no memory: the contract of the _sync functions does not promise it. */
void musaSimMeet(unsigned width);
/* c = a b in float (a: m x k row by row, b: k x n row by row), once for the group. */
void musaSimMultiply(struct MusaSimExchange* area, int m, int n, int k);
/* Orders as __syncwarp does, if the LOCKSTEP option is on. */
void musaSimLockstep(unsigned width);
int musaSimFragmentLayout(void);

/* Asynchronous copies into shared memory. */
void musaSimCopy(void* shared, const void* global, size_t bytes, size_t zero_fill);
void musaSimCommit(void);
void musaSimWait(size_t prior);

/* Asynchronous barriers, copies of boxes of tensors, and multiplications by squads of 128 threads: mp_31. */
void musaSimBarrierRecord(unsigned count);
void musaSimBarrierInit(unsigned number, unsigned warps, unsigned phase);
unsigned musaSimBarrierArrive(unsigned number); /* the phase in which the warp has arrived */
void musaSimBarrierAnnounce(unsigned number, long bytes);
void musaSimBarrierWait(unsigned number, unsigned phase);

struct MusaSimBox {
  const void* descriptor;
  void* shared;
  unsigned rank;
  int at[5], size[5];            /* in elements, innermost first */
  int granularity, stride, line; /* of the swizzle, as the instructions number them */
};
void musaSimBoxLoad(const struct MusaSimBox* box, unsigned barrier);
void musaSimBoxStore(const struct MusaSimBox* box);
void musaSimBoxCommit(void);
void musaSimBoxWait(void);

struct MusaSimSquadShape {
  int m, n, k;
  int transposed_a, transposed_b, negative_a, negative_b, scale, saturates, type;
};
void musaSimSquadMultiply(const struct MusaSimSquadShape* shape, void* d, unsigned a, unsigned b, const void* c);
void musaSimSquadWait(void);
void musaSimSquadCommit(void);
void musaSimSquadWaitFor(unsigned pending); /* until no more groups than that are pending */

unsigned musaSimSharedNumber(const void* address); /* as descriptors have it */
char* musaSimSharedAddress(const void* number_or_address, size_t bytes);

/* Dynamic shared memory starts here in every launch. */
extern char* const musaSimDynamicShared;

/* An access by the running thread, from instrumented code; pc is an address in the code that did it. */
enum { MUSA_SIM_WRITE = 1, MUSA_SIM_ATOMIC = 2, MUSA_SIM_UNALIGNED = 4, MUSA_SIM_UNCOUNTED = 8 };
void musaSimAccess(const void* p, size_t bytes, int flags, const void* pc);
/* A wmma load or store, for the counters: `lines` runs of `run` bytes, `pitch` bytes apart, by `width` lanes. */
void musaSimTile(const void* p, size_t run, size_t lines, size_t pitch, unsigned width, int write, const void* pc);
/* A finding of the compiler's own checks. */
void musaSimFinding(const char* kind, const char* file, unsigned line, const char* text);

/* Ends the kernel with an error, and says why. */
[[noreturn]] void musaSimFault(int error, const char* text);
}
#pragma GCC visibility pop

#endif
