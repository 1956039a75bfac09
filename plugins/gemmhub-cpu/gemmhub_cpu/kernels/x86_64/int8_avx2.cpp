// int8 by AVX2. The products of bytes that AVX2 has saturate at 16 bits, so packing widens both operands to int16, and
// vpmaddwd adds two exact products to 32 bits.
#pragma GCC target("avx2,fma,f16c")
#include "tile_4x24.h"

namespace {
struct Product : Integers {
  static inline __attribute__((always_inline)) Vector add(Vector sum, __m256i b, __m256i a) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(b, a));
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kInt8Avx2 = {Word::kInt16x2, 4, 24, 1, 256, Order::kWords, Order::kWords,
    nullptr, multiply_4_rows<Product>, nullptr, nullptr};
