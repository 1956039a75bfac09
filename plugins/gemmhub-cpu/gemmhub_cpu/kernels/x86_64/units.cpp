// The units of x86_64.
#include "../unit.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

const gemmhub::Unit* const gemmhub::kUnits[] = {&kInt8Vnni,    &kInt8Avx2,    &kInt8Amx,  &kBfloat16Avx512,
                                                &kBfloat16Amx, &kFloatAvx512, &kFloatAvx2,
                                                &kInt32Avx2,   &kInt64Avx2,   &kInt8AvxVnni,
                                                &kInt8AvxVnniInt8, &kFloat16Amx, &kFloat64Avx512, &kFloat64Avx2};

extern "C" {

// Asks Linux for the tile registers of AMX, once for the process: 0 where they may be used.
int64_t gemmhub_cpu_request_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData);
}

// Instructions that /proc/cpuinfo does not list: 1 for AVX-VNNI-INT8, 2 for AMX-FP16, where the system saves their registers.
int64_t gemmhub_cpu_features() {
  unsigned a, b, c, d, saved, high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
  asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));  // XCR0
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !a || !__get_cpuid_count(7, 1, &a, &b, &c, &d)) return 0;
  const bool vectors = (saved & 0x6) == 0x6, tiles = (saved & 0x60000) == 0x60000;
  return (vectors && (d & 1 << 4) ? 1 : 0) | (tiles && (a & 1 << 21) ? 2 : 0);
}

}  // extern "C"
