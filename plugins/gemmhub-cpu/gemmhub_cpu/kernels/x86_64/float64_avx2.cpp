// float64 by AVX2 and FMA, one chain along k.
#pragma GCC target("avx2,fma,f16c")
#include "tile_4x24.h"

namespace {
struct Product : Doubles {
  static inline __attribute__((always_inline)) Vector add(Vector sum, Vector b, Vector a) {
    return _mm256_fmadd_pd(b, a, sum);
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kFloat64Avx2 = {Word::kFloat64Half, 4, 12, 2, 512, Order::kWords, Order::kWords,
    nullptr, multiply_4_rows<Product>, nullptr, nullptr};
