// The floating-point mode of a thread: how it rounds, whether it reads and writes subnormals, which exceptions trap.
#pragma once

#include <cstdint>

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

namespace gemmhub {

// For its lifetime the thread rounds to nearest, keeps subnormals and traps nothing; then it is as before, its flags too. A
// library that was built with -ffast-math, or torch.set_flush_denormal(True), leaves another mode in the thread that calls,
// and a new thread begins with that of the thread which made it.
class DefaultMode {
 public:
#ifdef __x86_64__
  DefaultMode() : before_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~DefaultMode() { _mm_setcsr(before_); }

 private:
  const unsigned before_;
#else
  DefaultMode() {
    asm volatile("mrs %0, fpcr" : "=r"(control_));
    asm volatile("mrs %0, fpsr" : "=r"(status_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}) : "memory");
  }
  ~DefaultMode() {
    asm volatile("msr fpcr, %0" : : "r"(control_) : "memory");
    asm volatile("msr fpsr, %0" : : "r"(status_) : "memory");
  }

 private:
  uint64_t control_, status_;
#endif

 public:
  DefaultMode(const DefaultMode&) = delete;
  DefaultMode& operator=(const DefaultMode&) = delete;
};

}  // namespace gemmhub
