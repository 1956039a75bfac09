// int8 by AVX-VNNI: vpdpbusd in 256 bits, on processors without AVX-512. As in int8_vnni.cpp b is packed plus 128, and sums
// begin at -128 times those of the rows of a.
#pragma GCC target("avx2,fma,f16c")
#include "tile_4x24.h"

#include "encoded.h"

namespace {
struct Product : Integers {
  static inline __attribute__((always_inline)) Vector add(Vector sum, __m256i b, __m256i a) {
    return dot_unsigned_signed(sum, b, a);
  }
};

void starts(const uint32_t* packed_a, int64_t words, int32_t* start) {
  const __m128i bytes = _mm_set1_epi8(1), pairs = _mm_set1_epi16(1);
  __m128i sum = _mm_setzero_si128();
  for (int64_t q = 0; q < words; ++q) {
    const __m128i rows = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed_a + 4 * q));
    sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_maddubs_epi16(bytes, rows), pairs));
  }
  sum = _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(sum, 7));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(start), sum);
}
}  // namespace

const gemmhub::Unit gemmhub::kInt8AvxVnni = {Word::kInt8x4, 4, 24, 1, 256, Order::kWords, Order::kWords,
    starts, multiply_4_rows<Product>, nullptr, nullptr};
