// int32 by AVX2, signed or not: vpmulld has the low 32 bits of a product. Everything wraps modulo 2^32.
#pragma GCC target("avx2,fma,f16c")
#include "tile_4x24.h"

namespace {
struct Product : Integers {
  static inline __attribute__((always_inline)) Vector add(Vector sum, __m256i b, __m256i a) {
    return _mm256_add_epi32(sum, _mm256_mullo_epi32(b, a));
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kInt32Avx2 = {Word::kInt32, 4, 24, 1, 256, Order::kWords, Order::kWords,
    nullptr, multiply_4_rows<Product>, nullptr, nullptr};
