// int8 by AVX-512 VNNI. vpdpbusd multiplies unsigned by signed bytes, four at a time, and adds them to 32 bits. So b is
// packed plus 128. Everything wraps modulo 2^32: the result is exact whenever the true one fits in int32.
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni")
#include "tile_8x48.h"

namespace {
struct Product : Integers {
  static inline __attribute__((always_inline)) Vector add(Vector sum, __m512i b, __m512i a) {
    return _mm512_dpbusd_epi32(sum, b, a);
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kInt8Vnni = {Word::kInt8x4, 8, 48, 1, 192, false, true, multiply_8x48<Product>, nullptr, nullptr};
