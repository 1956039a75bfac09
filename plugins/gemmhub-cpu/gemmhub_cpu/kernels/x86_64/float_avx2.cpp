// float32 by AVX2 and FMA: for 16-bit operands, which packing converts.
#pragma GCC target("avx2,fma,f16c")
#include "tile_4x24.h"

namespace {
struct Product : Floats {
  static inline __attribute__((always_inline)) Vector add(Vector sum, __m256i b, __m256i a) {
    return _mm256_fmadd_ps(_mm256_castsi256_ps(b), _mm256_castsi256_ps(a), sum);
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kFloatAvx2 = {Word::kFloat32, 4, 24, 1, 256, Order::kWords, Order::kWords,
    nullptr, multiply_4x24<Product>, nullptr, nullptr};
