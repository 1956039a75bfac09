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

void starts(const uint32_t* packed_a, int64_t words, int32_t* start) {
  const __m256i bytes = _mm256_set1_epi8(1), pairs = _mm256_set1_epi16(1);
  __m256i sum = _mm256_setzero_si256();
  for (int64_t q = 0; q < words; ++q) {
    const __m256i rows = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed_a + 8 * q));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, rows), pairs));
  }
  sum = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sum, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(start), sum);
}
}  // namespace

const gemmhub::Unit gemmhub::kInt8Vnni = {Word::kInt8x4, 8, 48, 1, 192, Order::kWords, Order::kWords,
    starts, multiply_8_rows<Product>, nullptr, nullptr};
