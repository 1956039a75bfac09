// float32 by AVX2 and FMA, one chain along k; packing converts 16-bit operands.
#pragma GCC target("avx2,fma,f16c")
#include "tile_4x24.h"

namespace {
struct Product : Floats {
  static inline __attribute__((always_inline)) Vector add(Vector sum, Vector b, Vector a) {
    return _mm256_fmadd_ps(b, a, sum);
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kFloatAvx2 = {Word::kFloat32, 4, 24, 1, 256, Order::kWords, Order::kWords,
    nullptr, multiply_4_rows<Product>, nullptr, nullptr};
