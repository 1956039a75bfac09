// bfloat16 by AVX512_BF16: vdpbf16ps adds two products to a float32. It reads subnormal operands as 0 and flushes
// subnormal results, as the other bfloat16 instructions of x86 do.
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16")
#include "tile_8x48.h"

namespace {
struct Product : Floats {
  static inline __attribute__((always_inline)) Vector add(Vector sum, Vector b, Vector a) {  // words are copied whatever they hold
    return _mm512_dpbf16_ps(sum, (__m512bh)b, (__m512bh)a);
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kBfloat16Avx512 = {Word::kBfloat16x2, 8, 48, 1, 192, Order::kWords, Order::kWords,
    nullptr, multiply_8_rows<Product>, nullptr, nullptr};
