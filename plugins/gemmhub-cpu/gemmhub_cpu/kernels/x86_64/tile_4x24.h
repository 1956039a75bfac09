// The loop of the micro-kernels for AVX2: 4 rows by three vectors of 8 columns. Included by one file for each kind of
// product.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../unit.h"

namespace {

inline __m256i first_columns(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(count < 0 ? 0 : count > 8 ? 8 : count)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

struct Integers {
  using Vector = __m256i;
  static inline __attribute__((always_inline)) Vector start(const int32_t* sums, int64_t row) {
    return sums ? _mm256_set1_epi32(sums[row]) : _mm256_setzero_si256();
  }
  static inline __attribute__((always_inline)) void store(Vector sum, float* at, __m256i mask, bool first) {
    int* to = reinterpret_cast<int*>(at);
    if (!first) sum = _mm256_add_epi32(sum, _mm256_maskload_epi32(to, mask));
    _mm256_maskstore_epi32(to, mask, sum);
  }
};

struct Floats {
  using Vector = __m256;
  static inline __attribute__((always_inline)) Vector start(const int32_t*, int64_t) { return _mm256_setzero_ps(); }
  static inline __attribute__((always_inline)) void store(Vector sum, float* at, __m256i mask, bool first) {
    if (!first) sum = _mm256_add_ps(sum, _mm256_maskload_ps(at, mask));
    _mm256_maskstore_ps(at, mask, sum);
  }
};

template <class Product>
void multiply_4x24(const uint32_t* a, const uint32_t* b, int64_t words, const int32_t* start, bool first, void* out,
                   int64_t stride, int64_t rows, int64_t columns) {
  using Vector = typename Product::Vector;
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3)
#define BEGIN(i) Vector x##i = Product::start(first ? start : nullptr, i), y##i = x##i, z##i = x##i;
  EACH_ROW(BEGIN)
  float* const at = static_cast<float*>(out);
#define PREFETCH(i)                            \
  if (i < rows) {                              \
    __builtin_prefetch(at + i * stride, 1);      \
    __builtin_prefetch(at + i * stride + 16, 1); \
  }
  EACH_ROW(PREFETCH)  // the sums, while the products are made
  for (int64_t q = 0; q < words; ++q, a += 4, b += 24) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
    const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + 8));
    const __m256i z = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + 16));
#define MULTIPLY(i)                                                    \
  {                                                                    \
    const __m256i all = _mm256_set1_epi32(static_cast<int32_t>(a[i])); \
    x##i = Product::add(x##i, x, all);                                 \
    y##i = Product::add(y##i, y, all);                                 \
    z##i = Product::add(z##i, z, all);                                 \
  }
    EACH_ROW(MULTIPLY)
  }
  const __m256i low = first_columns(columns), middle = first_columns(columns - 8), high = first_columns(columns - 16);
#define STORE(i)                                                              \
  if (i < rows) {                                                             \
    Product::store(x##i, at + i * stride, low, first);                        \
    if (columns > 8) Product::store(y##i, at + i * stride + 8, middle, first); \
    if (columns > 16) Product::store(z##i, at + i * stride + 16, high, first); \
  }
  EACH_ROW(STORE)
#undef EACH_ROW
#undef BEGIN
#undef PREFETCH
#undef MULTIPLY
#undef STORE
}

}  // namespace
