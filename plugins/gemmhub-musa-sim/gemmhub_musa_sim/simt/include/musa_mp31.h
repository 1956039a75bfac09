/* The compiler's functions for mp_31: asynchronous barriers, tensor copies (TME), multiplications by squads (SQMMA), robust
 * loads. Names, parameters and meaning are those of the calls in MUTLASS v0.3.0: mutlass/arch/barrier.hpp,
 * mute/arch/copy_mp31_tme.hpp, copy_mp31.hpp, mma_mp31_sqmma.hpp and mma_mp31_desc.hpp. */
#ifndef MUSA_SIM_MP31_H
#define MUSA_SIM_MP31_H
#include "musa_sim_device.h"

/* Shared memory by number, as pointers to it (address space 3) and descriptors have it. */
MUSA_SIM_INLINE size_t __cvta_generic_to_shared(const void* p) { return musaSimSharedNumber(p); }

/* ---- barriers 1 to 63; lanes of a warp that arrive together count once ---- */
MUSA_SIM_INLINE void __musa_async_bar_record(unsigned count) { musaSimBarrierRecord(count); }
MUSA_SIM_INLINE void __musa_async_init_arrival(unsigned number, unsigned warps, unsigned phase) {
  musaSimBarrierInit(number, warps, phase);
}
MUSA_SIM_INLINE unsigned __musa_async_arrive(unsigned number) { return musaSimBarrierArrive(number); }
MUSA_SIM_INLINE void __musa_async_add_trans(unsigned number, unsigned bytes) {
  musaSimBarrierAnnounce(number, long(bytes));
}
MUSA_SIM_INLINE void __musa_async_decrease_trans(unsigned number, unsigned bytes) {
  musaSimBarrierAnnounce(number, -long(bytes));
}
MUSA_SIM_INLINE void __musa_async_wait(unsigned number, unsigned phase) { musaSimBarrierWait(number, phase); }

/* ---- tensor copies; sizes and places are vectors of int, innermost dimension first ---- */
namespace musa_sim {
template <unsigned Rank, class Vector>
MUSA_SIM_INLINE MusaSimBox box(const void* shared, unsigned long long descriptor, Vector size, Vector at,
                               int granularity, int stride, int line) {
  MusaSimBox made{reinterpret_cast<const void*>(descriptor), const_cast<void*>(shared), Rank, {}, {}, granularity,
                  stride, line};
  for (unsigned i = 0; i < Rank; i++) {
    if constexpr (Rank == 1) {
      made.at[i] = int(at);
      made.size[i] = int(size);
    } else {
      made.at[i] = int(at[i]);
      made.size[i] = int(size[i]);
    }
  }
  return made;
}
}  // namespace musa_sim

/* The numbers after the swizzle are hints for caches; compilers differ in how many they take. */
#define MUSA_SIM_TENSOR_COPIES(RANK)                                                                                  \
  template <class Vector, class... Hints>                                                                             \
  MUSA_SIM_INLINE void __musa_tme_ld_tile_##RANK##d(unsigned barrier, const void* shared, unsigned long long tensor,   \
                                                    Vector size, Vector at, int granularity, int stride, int line,    \
                                                    int, Hints...) {                                                  \
    const MusaSimBox box = musa_sim::box<RANK>(shared, tensor, size, at, granularity, stride, line);                  \
    musaSimBoxLoad(&box, barrier);                                                                                    \
  }                                                                                                                   \
  template <class Vector, class... Hints>                                                                             \
  MUSA_SIM_INLINE void __musa_tme_st_##RANK##d(const void* shared, unsigned long long tensor, Vector size, Vector at, \
                                               int granularity, int stride, int line, Hints...) {                     \
    const MusaSimBox box = musa_sim::box<RANK>(shared, tensor, size, at, granularity, stride, line);                  \
    musaSimBoxStore(&box);                                                                                            \
  }                                                                                                                   \
  template <class Vector>                                                                                             \
  MUSA_SIM_INLINE void __musa_tme_tile_prefetch_only_##RANK##d(unsigned long long, Vector, Vector) {}
MUSA_SIM_TENSOR_COPIES(1)
MUSA_SIM_TENSOR_COPIES(2)
MUSA_SIM_TENSOR_COPIES(3)
MUSA_SIM_TENSOR_COPIES(4)
MUSA_SIM_TENSOR_COPIES(5)
#undef MUSA_SIM_TENSOR_COPIES
MUSA_SIM_INLINE void __musa_tme_store_commit() { musaSimBoxCommit(); }
MUSA_SIM_INLINE void __musa_tme_store_read_wait() { musaSimBoxWait(); }

/* ---- D = (+-A) (+-B) + C, 32 bits an element; scale 0: C is added, 1: it is not (MUTLASS's ScaleOut) ---- */
#define MUSA_SIM_SQUAD(M, N)                                                                                          \
  template <class D>                                                                                                  \
  MUSA_SIM_INLINE void __musa_sqmma_m##M##n##N##_mma(D* d, const int* a, const int* b, const D* c, int transposed_a,   \
                                                     int transposed_b, int negative_a, int negative_b, int scale,     \
                                                     int saturates, int k, int type) {                                \
    static_assert(sizeof(D) == 4, "accumulators have 32 bits");                                                       \
    const MusaSimSquadShape shape = {M, N, k, transposed_a, transposed_b, negative_a, negative_b, scale, saturates,   \
                                     type};                                                                           \
    musaSimSquadMultiply(&shape, d, unsigned(*a), unsigned(*b), c);                                                   \
  }
MUSA_SIM_SQUAD(16, 64)
MUSA_SIM_SQUAD(32, 32)
MUSA_SIM_SQUAD(32, 64)
MUSA_SIM_SQUAD(32, 128)
MUSA_SIM_SQUAD(64, 16)
MUSA_SIM_SQUAD(64, 32)
MUSA_SIM_SQUAD(64, 64)
MUSA_SIM_SQUAD(64, 128)
MUSA_SIM_SQUAD(128, 32)
MUSA_SIM_SQUAD(128, 64)
MUSA_SIM_SQUAD(128, 128)
#undef MUSA_SIM_SQUAD
MUSA_SIM_INLINE void __musa_sqmma_wait() { musaSimSquadWait(); }
/* Of later compilers. */
MUSA_SIM_INLINE void __musa_tce_commit_group() { musaSimSquadCommit(); }
MUSA_SIM_INLINE void __musa_tce_wait_group(int pending) { musaSimSquadWaitFor(unsigned(pending)); }

/* ---- robust access: outside of the buffer that a descriptor (address, bytes) names, loads give 0 and stores nothing ---- */
namespace musa_sim {
typedef unsigned long long Robust __attribute__((vector_size(16)));

MUSA_SIM_INLINE bool within(const void* p, size_t bytes, Robust buffer) {
  const unsigned long long at = (unsigned long long)(p);
  const bool starts = at >= buffer[0] && at < buffer[0] + buffer[1], ends = at + bytes <= buffer[0] + buffer[1];
  if (starts && !ends) musaSimFault(musaErrorIllegalAddress, "robust access: part of the elements is in the buffer");
  return starts;
}
template <class T>
MUSA_SIM_INLINE T robust_load(const void* p, Robust buffer) {
  T value{};
  if (within(p, sizeof(T), buffer)) value = *static_cast<const T*>(p);
  return value;
}
template <class T>
MUSA_SIM_INLINE void robust_store(T value, void* p, Robust buffer) {
  if (within(p, sizeof(T), buffer)) *static_cast<T*>(p) = value;
}
}  // namespace musa_sim

#define MUSA_SIM_ROBUST(NAME, ...)                                                                       \
  MUSA_SIM_INLINE __VA_ARGS__ __musa_ld_v4_robust_##NAME(const void* p, musa_sim::Robust buffer, int) {  \
    return musa_sim::robust_load<__VA_ARGS__>(p, buffer);                                                \
  }                                                                                                      \
  MUSA_SIM_INLINE void __musa_st_v4_robust_##NAME(__VA_ARGS__ value, void* p, musa_sim::Robust buffer) { \
    musa_sim::robust_store(value, p, buffer);                                                            \
  }
namespace musa_sim {
typedef int Ints4 __attribute__((vector_size(16)));
typedef int Ints8 __attribute__((vector_size(32), aligned(16)));
typedef int Ints16 __attribute__((vector_size(64), aligned(16)));
typedef int Ints32 __attribute__((vector_size(128), aligned(16)));
}  // namespace musa_sim
MUSA_SIM_ROBUST(i8, signed char)
MUSA_SIM_ROBUST(i16, short)
MUSA_SIM_ROBUST(i32, int)
MUSA_SIM_ROBUST(i64, long)
MUSA_SIM_ROBUST(v4i32, musa_sim::Ints4)
MUSA_SIM_ROBUST(v8i32, musa_sim::Ints8)
MUSA_SIM_ROBUST(v16i32, musa_sim::Ints16)
MUSA_SIM_ROBUST(v32i32, musa_sim::Ints32)
#undef MUSA_SIM_ROBUST

/* Copies into shared memory as __pipeline_memcpy_async, waited for all at once. */
MUSA_SIM_INLINE void __musa_memcpy_g2s(void* shared, const void* global, size_t bytes, int) {
  const size_t each = bytes < 16 ? bytes : 16;
  for (size_t at = 0; at < bytes; at += each)
    musaSimCopy(musaSimSharedAddress(shared, bytes) + at, static_cast<const char*>(global) + at, each, 0);
  musaSimCommit();
}
MUSA_SIM_INLINE void __musa_memcpy_g2s_robust_v4(void* shared, const void* global, size_t bytes,
                                                 musa_sim::Robust buffer, int) {
  const bool inside = musa_sim::within(global, bytes, buffer);
  const size_t each = bytes < 16 ? bytes : 16;
  for (size_t at = 0; at < bytes; at += each)
    musaSimCopy(musaSimSharedAddress(shared, bytes) + at,
                inside ? static_cast<const char*>(global) + at : reinterpret_cast<const char*>(buffer[0]), each,
                inside ? 0 : each);
  musaSimCommit();
}
MUSA_SIM_INLINE void __musa_memcpy_g2s_wait() { musaSimWait(0); }

#endif
