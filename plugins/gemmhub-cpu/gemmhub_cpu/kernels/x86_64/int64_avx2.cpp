// int64 by AVX2, signed or not, modulo 2^64. With a = a1 2^32 + a0 and b likewise,
//
//   a b = a0 b0 + 2^32 (a1 b0 + a0 b1)   modulo 2^64
//
// Of a0 b0 all 64 bits count: vpmuludq multiplies the words of the even columns, and, shifted, of the odd ones. Of the other
// two products 32 bits count: vpmulld multiplies them for 8 columns at a time, and their sums are shifted once, at the end.
#pragma GCC target("avx2,fma,f16c")
#include <immintrin.h>

#include "../unit.h"

namespace {

constexpr int64_t kPanelRows = 4, kRows = 2, kColumns = 8;  // kRows at a time: 16 registers hold no more sums

inline __m256i first_columns(int64_t count) {
  return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3));
}

inline void store(long long* to, __m256i sum, int64_t count, bool first) {
  const __m256i mask = first_columns(count);
  if (!first) sum = _mm256_add_epi64(sum, _mm256_maskload_epi64(to, mask));
  _mm256_maskstore_epi64(to, mask, sum);
}

inline void multiply_2x8(const uint32_t* a, const uint32_t* b, int64_t words, bool first, long long* out, int64_t stride,
                         int64_t rows, int64_t columns) {
  __m256i even[kRows] = {}, odd[kRows] = {}, high[kRows] = {};
  for (int64_t q = 0; q < words; q += 2, a += 2 * kPanelRows, b += 2 * kColumns) {
    const __m256i b0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
    const __m256i b1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + kColumns));
    const __m256i b0_odd = _mm256_srli_epi64(b0, 32);
#pragma GCC unroll 2
    for (int64_t i = 0; i < kRows; ++i) {
      const __m256i a0 = _mm256_set1_epi32(static_cast<int32_t>(a[i]));
      const __m256i a1 = _mm256_set1_epi32(static_cast<int32_t>(a[kPanelRows + i]));
      even[i] = _mm256_add_epi64(even[i], _mm256_mul_epu32(a0, b0));
      odd[i] = _mm256_add_epi64(odd[i], _mm256_mul_epu32(a0, b0_odd));
      high[i] = _mm256_add_epi32(high[i], _mm256_add_epi32(_mm256_mullo_epi32(a1, b0), _mm256_mullo_epi32(a0, b1)));
    }
  }
  for (int64_t i = 0; i < kRows && i < rows; ++i) {
    const __m256i x = _mm256_add_epi64(even[i], _mm256_slli_epi64(high[i], 32));
    const __m256i y = _mm256_add_epi64(odd[i], _mm256_blend_epi32(_mm256_setzero_si256(), high[i], 0xAA));
    const __m256i low = _mm256_unpacklo_epi64(x, y), last = _mm256_unpackhi_epi64(x, y);  // columns 0 1 4 5, 2 3 6 7
    long long* const at = out + i * stride;
    store(at, _mm256_permute2x128_si256(low, last, 0x20), columns, first);
    if (columns > 4) store(at + 4, _mm256_permute2x128_si256(low, last, 0x31), columns - 4, first);
  }
}

void multiply_4x8(const uint32_t* a, const uint32_t* b, int64_t words, const int32_t*, bool first, void* out,
                  int64_t stride, int64_t rows, int64_t columns) {
  long long* const to = static_cast<long long*>(out);
  for (int64_t i = 0; i < rows; i += kRows)
    multiply_2x8(a + i, b, words, first, to + i * stride, stride, rows - i, columns);
}

}  // namespace

const gemmhub::Unit gemmhub::kInt64Avx2 = {Word::kInt64Half, kPanelRows, kColumns, 2, 512, Order::kWords, Order::kWords,
    nullptr, multiply_4x8, nullptr, nullptr};
