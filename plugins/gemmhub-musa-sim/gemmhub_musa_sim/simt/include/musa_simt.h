/* The device language for the simulator: what mcc's rewriter (mcc.py) leaves to ordinary C++. */
#ifndef MUSA_SIMT_H
#define MUSA_SIMT_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "musa_sim_device.h"

#define MUSA_SIM_INLINE inline __attribute__((always_inline))
/* Functions that touch the engine's own memory, or report their accesses themselves: the compiler must not add its
 * hooks. Not inlined there, so that their return address is the line that called them. */
#if MUSA_SIM_INSTRUMENTED
#define MUSA_SIM_UNHOOKED __attribute__((noinline, no_sanitize("thread", "undefined")))
#else
#define MUSA_SIM_UNHOOKED inline __attribute__((always_inline))
#endif

constexpr int warpSize = __MUSA_ARCH__ >= 310 ? 32 : 128;

/* ---- barriers ---- */
MUSA_SIM_INLINE void __syncthreads(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
  musaSimBarrier(file, line);
}
MUSA_SIM_INLINE int __syncthreads_count(int p, const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
  return musaSimBarrierReduce(file, line, p, 0);
}
MUSA_SIM_INLINE int __syncthreads_and(int p, const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
  return musaSimBarrierReduce(file, line, p, 1);
}
MUSA_SIM_INLINE int __syncthreads_or(int p, const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
  return musaSimBarrierReduce(file, line, p, 2);
}
/* All lanes of the hardware warp, whatever the mask: a mask that leaves lanes out ends in a deadlock report. */
MUSA_SIM_INLINE void __syncwarp(unsigned long long = ~0ull) { musaSimWarpBarrier(); }
MUSA_SIM_INLINE void __threadfence() {}
MUSA_SIM_INLINE void __threadfence_block() {}

/* ---- exchange between the lanes of a warp; all of them must take part ---- */
namespace musa_sim {
template <class T>
MUSA_SIM_UNHOOKED T shuffle(const char* operation, T value, int source, int width) {
  static_assert(sizeof(T) <= 8, "values of up to 8 bytes can be shuffled");
  MusaSimExchange* area = musaSimJoin(unsigned(warpSize), operation, nullptr, width);
  const int lane = int(musaSimLane(unsigned(warpSize))), first = lane / width * width;
  memcpy(&area->words[lane], &value, sizeof(T));
  musaSimMeet(unsigned(warpSize));
  if (source >= first && source < first + width) memcpy(&value, &area->words[source], sizeof(T));
  return value;
}
inline int lane() { return int(musaSimLane(unsigned(warpSize))); }
}  // namespace musa_sim

template <class T>
MUSA_SIM_INLINE T __shfl_sync(unsigned long long, T value, int source, int width = warpSize) {
  return musa_sim::shuffle("__shfl_sync", value, musa_sim::lane() / width * width + source % width, width);
}
template <class T>
MUSA_SIM_INLINE T __shfl_down_sync(unsigned long long, T value, unsigned by, int width = warpSize) {
  return musa_sim::shuffle("__shfl_down_sync", value, musa_sim::lane() + int(by), width);
}
template <class T>
MUSA_SIM_INLINE T __shfl_up_sync(unsigned long long, T value, unsigned by, int width = warpSize) {
  return musa_sim::shuffle("__shfl_up_sync", value, musa_sim::lane() - int(by), width);
}
template <class T>
MUSA_SIM_INLINE T __shfl_xor_sync(unsigned long long, T value, int mask, int width = warpSize) {
  return musa_sim::shuffle("__shfl_xor_sync", value, musa_sim::lane() ^ mask, width);
}

/* ---- atomics: real ones, since blocks run in several processes ---- */
namespace musa_sim {
template <class T, class Operation>
MUSA_SIM_UNHOOKED T atomic(T* p, Operation operation) {
#if MUSA_SIM_INSTRUMENTED
  musaSimAccess(p, sizeof(T), MUSA_SIM_WRITE | MUSA_SIM_ATOMIC, __builtin_return_address(0));
#endif
  T old, wanted;
  __atomic_load(p, &old, __ATOMIC_SEQ_CST);
  do wanted = operation(old);
  while (!__atomic_compare_exchange(p, &old, &wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  return old;
}
}  // namespace musa_sim

template <class T>
MUSA_SIM_INLINE T atomicAdd(T* p, T value) { return musa_sim::atomic(p, [=](T old) { return T(old + value); }); }
template <class T>
MUSA_SIM_INLINE T atomicSub(T* p, T value) { return musa_sim::atomic(p, [=](T old) { return T(old - value); }); }
template <class T>
MUSA_SIM_INLINE T atomicMax(T* p, T value) {
  return musa_sim::atomic(p, [=](T old) { return old < value ? value : old; });
}
template <class T>
MUSA_SIM_INLINE T atomicMin(T* p, T value) {
  return musa_sim::atomic(p, [=](T old) { return value < old ? value : old; });
}
template <class T>
MUSA_SIM_INLINE T atomicExch(T* p, T value) { return musa_sim::atomic(p, [=](T) { return value; }); }
template <class T>
MUSA_SIM_INLINE T atomicCAS(T* p, T expected, T value) {
  return musa_sim::atomic(p, [=](T old) { return old == expected ? value : old; });
}

/* ---- small functions of the device library ---- */
template <class T>
MUSA_SIM_INLINE T __ldg(const T* p) { return *p; }
MUSA_SIM_INLINE float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
MUSA_SIM_INLINE float __expf(float x) { return expf(x); }
MUSA_SIM_INLINE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
MUSA_SIM_INLINE int min(int a, int b) { return b < a ? b : a; }
MUSA_SIM_INLINE int max(int a, int b) { return a < b ? b : a; }
MUSA_SIM_INLINE unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
MUSA_SIM_INLINE unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
MUSA_SIM_INLINE float min(float a, float b) { return fminf(a, b); }
MUSA_SIM_INLINE float max(float a, float b) { return fmaxf(a, b); }

#if __MUSA_ARCH__ >= 310
#include "musa_mp31.h"
#endif
#include "musa_launch.h"

#endif
