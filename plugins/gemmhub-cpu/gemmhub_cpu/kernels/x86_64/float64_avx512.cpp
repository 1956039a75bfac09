// float64 by AVX-512, one chain along k.
#pragma GCC target("avx512f,avx512bw,avx512vl")
#include "tile_8x48.h"

namespace {
struct Product : Doubles {
  static inline __attribute__((always_inline)) Vector add(Vector sum, Vector b, Vector a) {
    return _mm512_fmadd_pd(b, a, sum);
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kFloat64Avx512 = {Word::kFloat64Half, 8, 24, 2, 384, Order::kWords, Order::kWords,
    nullptr, multiply_8_rows<Product>, nullptr, nullptr};
