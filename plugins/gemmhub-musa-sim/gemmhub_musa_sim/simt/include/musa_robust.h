/* Pointers into a buffer whose bounds the hardware checks (mp_31). */
#ifndef MUSA_SIM_ROBUST_H
#define MUSA_SIM_ROBUST_H
#include "musa_runtime.h"

#if defined(__MUSA_ARCH__) && __MUSA_ARCH__ >= 310
namespace __musa {
typedef musa_sim::Robust robust_v4_addr_t;

template <class T>
class robust_ptr {
 public:
  robust_ptr(T* base, unsigned long long bytes) : address_{(unsigned long long)(base), bytes} {}
  robust_v4_addr_t get_v4_robust_addr() const { return address_; }

 private:
  robust_v4_addr_t address_;
};
}  // namespace __musa
#endif

#endif
