// int8 by AVX-VNNI-INT8: vpdpbssd multiplies signed bytes, so that nothing is added to b and subtracted from the sums.
#pragma GCC target("avx2,fma,f16c")
#include "tile_4x24.h"

#include "encoded.h"

namespace {
struct Product : Integers {
  static inline __attribute__((always_inline)) Vector add(Vector sum, __m256i b, __m256i a) { return dot_signed(sum, b, a); }
};
}  // namespace

const gemmhub::Unit gemmhub::kInt8AvxVnniInt8 = {Word::kInt8x4, 4, 24, 1, 256, Order::kWords, Order::kWords,
    nullptr, multiply_4_rows<Product>, nullptr, nullptr};
