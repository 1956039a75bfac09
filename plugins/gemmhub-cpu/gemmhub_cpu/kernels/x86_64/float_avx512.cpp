// float32 by AVX-512, one chain along k; packing converts 16-bit operands.
#pragma GCC target("avx512f,avx512bw,avx512vl")
#include "tile_8x48.h"

namespace {
struct Product : Floats {
  static inline __attribute__((always_inline)) Vector add(Vector sum, Vector b, Vector a) {
    return _mm512_fmadd_ps(b, a, sum);
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kFloatAvx512 = {Word::kFloat32, 8, 48, 1, 192, Order::kWords, Order::kWords,
    nullptr, multiply_8_rows<Product>, nullptr, nullptr};
