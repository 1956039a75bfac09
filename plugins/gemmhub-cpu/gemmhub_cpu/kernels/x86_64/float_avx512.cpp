// float32 by AVX-512: for 16-bit operands, which packing converts.
#pragma GCC target("avx512f,avx512bw,avx512vl")
#include "tile_8x48.h"

namespace {
struct Product : Floats {
  static inline __attribute__((always_inline)) Vector add(Vector sum, __m512i b, __m512i a) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(b), _mm512_castsi512_ps(a), sum);
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kFloatAvx512 = {Word::kFloat32, 8, 48, 1, 192, Order::kWords, Order::kWords,
    nullptr, multiply_8x48<Product>, nullptr, nullptr};
