// Rounding to bfloat16 by the instruction of AVX512_BF16 (emulated where the CPU has none) against that by AVX2: every result
// must agree, but that subnormal numbers are written as 0. Returns the number of those that do not, at most 100.
#include "../gemmhub_cpu/kernels/vector.h"

extern "C" void amx_emulator_install();

int main() {
  using namespace gemmhub;
  amx_emulator_install();
  int wrong = 0;
  for (uint64_t start = 0; start < uint64_t{1} << 32; start += 40009) {
    uint32_t values[8];
    uint16_t expected[8], rounded[8];
    for (int i = 0; i < 8; ++i) values[i] = static_cast<uint32_t>(start + 4999 * i);
    values[7] = values[7] & 0xFFFF0000 | 0x8000;  // a tie
    narrow<kBfloat16, false, false>(wide<kFloat32>(values), expected);
    narrow<kBfloat16, true, false>(wide<kFloat32>(values), rounded);
    for (int i = 0; i < 8; ++i) {
      if (!(values[i] & 0x7F800000)) expected[i] = values[i] >> 16 & 0x8000;
      wrong += expected[i] != rounded[i];
    }
  }
  return wrong > 100 ? 100 : wrong;
}
