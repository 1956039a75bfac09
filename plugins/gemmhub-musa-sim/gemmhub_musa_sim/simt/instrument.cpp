// Linked into kernels that mcc compiles with the compiler's hooks for data races, bounds and alignment. Stands in for
// the compiler's own run-time libraries, which know nothing of a GPU's threads.
#include <stdio.h>
#include <string.h>

#include "musa_sim_device.h"

#define HOOK extern "C" __attribute__((visibility("hidden"), used))
#define HERE __builtin_return_address(0)

// ---- data accesses, as -fsanitize=thread calls them
#define ACCESS(bytes)                                                                                              \
  HOOK void __tsan_read##bytes(void* p) { musaSimAccess(p, bytes, 0, HERE); }                                      \
  HOOK void __tsan_write##bytes(void* p) { musaSimAccess(p, bytes, MUSA_SIM_WRITE, HERE); }                        \
  HOOK void __tsan_unaligned_read##bytes(void* p) { musaSimAccess(p, bytes, MUSA_SIM_UNALIGNED, HERE); }           \
  HOOK void __tsan_unaligned_write##bytes(void* p) {                                                               \
    musaSimAccess(p, bytes, MUSA_SIM_WRITE | MUSA_SIM_UNALIGNED, HERE);                                            \
  }                                                                                                                \
  HOOK void __tsan_volatile_read##bytes(void* p) { musaSimAccess(p, bytes, 0, HERE); }                             \
  HOOK void __tsan_volatile_write##bytes(void* p) { musaSimAccess(p, bytes, MUSA_SIM_WRITE, HERE); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

HOOK void __tsan_read_range(void* p, unsigned long bytes) { musaSimAccess(p, bytes, MUSA_SIM_UNALIGNED, HERE); }
HOOK void __tsan_write_range(void* p, unsigned long bytes) {
  musaSimAccess(p, bytes, MUSA_SIM_WRITE | MUSA_SIM_UNALIGNED, HERE);
}
HOOK void __tsan_init() {}
HOOK void __tsan_func_entry(void*) {}
HOOK void __tsan_func_exit() {}
HOOK void __tsan_vptr_read(void**) {}
HOOK void __tsan_vptr_update(void**, void*) {}
HOOK void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
HOOK void __tsan_atomic_signal_fence(int) {}

// ---- atomics of host code in the same file (guards of static variables, shared pointers); kernels' are in musa_simt.h
#define ATOMIC(bits, type)                                                                                         \
  HOOK type __tsan_atomic##bits##_load(const volatile type* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); } \
  HOOK void __tsan_atomic##bits##_store(volatile type* p, type v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); } \
  HOOK type __tsan_atomic##bits##_exchange(volatile type* p, type v, int) {                                        \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                                            \
  }                                                                                                                \
  HOOK type __tsan_atomic##bits##_fetch_add(volatile type* p, type v, int) {                                       \
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                                             \
  }                                                                                                                \
  HOOK type __tsan_atomic##bits##_fetch_sub(volatile type* p, type v, int) {                                       \
    return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);                                                             \
  }                                                                                                                \
  HOOK int __tsan_atomic##bits##_compare_exchange_strong(volatile type* p, type* e, type v, int, int) {            \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                        \
  }
ATOMIC(8, char)
ATOMIC(16, short)
ATOMIC(32, int)
ATOMIC(64, long)

// ---- -fsanitize=bounds,alignment: the compiler passes where in the source it is
namespace {

struct Place {
  const char* file;
  unsigned line, column;
};

void finding(const char* kind, const Place& place, const char* format, unsigned long value) {
  char text[120];
  snprintf(text, sizeof text, format, value);
  musaSimFinding(kind, place.file, place.line, text);
}

}  // namespace

struct OutOfBounds {
  Place place;
};
struct TypeMismatch {
  Place place;
  const void* type;
  unsigned char log_alignment, check;
};

HOOK void __ubsan_handle_out_of_bounds(OutOfBounds* data, unsigned long index) {
  finding("bounds", data->place, "index %ld", index);
}
HOOK void __ubsan_handle_out_of_bounds_abort(OutOfBounds* data, unsigned long index) {
  finding("bounds", data->place, "index %ld", index);
}
HOOK void __ubsan_handle_type_mismatch_v1(TypeMismatch* data, unsigned long p) {
  finding("alignment", data->place, "address 0x%lx", p);
}
HOOK void __ubsan_handle_type_mismatch_v1_abort(TypeMismatch* data, unsigned long p) {
  finding("alignment", data->place, "address 0x%lx", p);
}
