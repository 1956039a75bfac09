// The units of x86_64.
#include "../unit.h"

#include <sys/syscall.h>
#include <unistd.h>

const gemmhub::Unit* const gemmhub::kUnits[] = {&kInt8Vnni,    &kInt8Avx2,    &kInt8Amx,  &kBfloat16Avx512,
                                                &kBfloat16Amx, &kFloatAvx512, &kFloatAvx2};

extern "C" {

// Asks Linux for the tile registers of AMX, once for the process: 0 where they may be used.
int64_t gemmhub_cpu_request_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData);
}

}  // extern "C"
