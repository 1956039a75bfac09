// The loop of the micro-kernels for AVX-512: 8 rows by three vectors of 16 columns. Included by one file for each kind of
// product, which compiles it for its own instructions.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "../unit.h"

namespace {

inline __mmask16 first_columns(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1);
}

struct Integers {
  using Vector = __m512i;
  static inline __attribute__((always_inline)) Vector start(const int32_t* sums, int64_t row) {
    return sums ? _mm512_set1_epi32(sums[row]) : _mm512_setzero_si512();
  }
  static inline __attribute__((always_inline)) void store(Vector sum, void* at, __mmask16 mask, bool first) {
    if (!first) sum = _mm512_add_epi32(sum, _mm512_maskz_loadu_epi32(mask, at));
    _mm512_mask_storeu_epi32(at, mask, sum);
  }
};

struct Floats {
  using Vector = __m512;
  static inline __attribute__((always_inline)) Vector start(const int32_t*, int64_t) { return _mm512_setzero_ps(); }
  static inline __attribute__((always_inline)) void store(Vector sum, void* at, __mmask16 mask, bool first) {
    if (!first) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, at));
    _mm512_mask_storeu_ps(at, mask, sum);
  }
};

// The accumulators are 24 variables, not an array, which the compiler would keep in memory, too. Of the 8 rows and three
// vectors of a micro-panel kRows and kVectors are multiplied.
template <class Product, int kRows, int kVectors>
void tile_8x48(const uint32_t* a, const uint32_t* b, int64_t words, const int32_t* start, bool first, void* out,
               int64_t stride, int64_t rows, int64_t columns) {
  using Vector = typename Product::Vector;
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define BEGIN(i)                                                                                       \
  [[maybe_unused]] Vector x##i = Product::start(i < kRows && first ? start : nullptr, i), y##i = x##i, \
                          z##i = x##i;
  EACH_ROW(BEGIN)
  float* const at = static_cast<float*>(out);
#define PREFETCH(i)                                                                  \
  if (i < kRows && i < rows) {                                                         \
    __builtin_prefetch(at + i * stride, 1);                                            \
    if constexpr (kVectors > 1) __builtin_prefetch(at + i * stride + 16, 1);           \
    if constexpr (kVectors > 2) __builtin_prefetch(at + i * stride + 32, 1);           \
  }
  EACH_ROW(PREFETCH)  // the sums, while the products are made
  for (int64_t q = 0; q < words; ++q, a += 8, b += 48) {
    [[maybe_unused]] const __m512i x = _mm512_loadu_si512(b), y = _mm512_loadu_si512(b + 16),
                                   z = _mm512_loadu_si512(b + 32);
#define MULTIPLY(i)                                                    \
  if constexpr (i < kRows) {                                           \
    const __m512i all = _mm512_set1_epi32(static_cast<int32_t>(a[i])); \
    x##i = Product::add(x##i, x, all);                                 \
    if constexpr (kVectors > 1) y##i = Product::add(y##i, y, all);     \
    if constexpr (kVectors > 2) z##i = Product::add(z##i, z, all);     \
  }
    EACH_ROW(MULTIPLY)
  }
  const __mmask16 low = first_columns(columns), middle = first_columns(columns - 16), high = first_columns(columns - 32);
#define STORE(i)                                                                            \
  if (i < kRows && i < rows) {                                                              \
    Product::store(x##i, at + i * stride, low, first);                                      \
    if constexpr (kVectors > 1) Product::store(y##i, at + i * stride + 16, middle, first);  \
    if constexpr (kVectors > 2) Product::store(z##i, at + i * stride + 32, high, first);    \
  }
  EACH_ROW(STORE)
#undef EACH_ROW
#undef BEGIN
#undef PREFETCH
#undef MULTIPLY
#undef STORE
}

template <class Product, int kRows>
void by_columns(const uint32_t* a, const uint32_t* b, int64_t words, const int32_t* start, bool first, void* out,
                int64_t stride, int64_t rows, int64_t columns) {
  if (columns > 32)
    tile_8x48<Product, kRows, 3>(a, b, words, start, first, out, stride, rows, columns);
  else if (columns > 16)
    tile_8x48<Product, kRows, 2>(a, b, words, start, first, out, stride, rows, columns);
  else
    tile_8x48<Product, kRows, 1>(a, b, words, start, first, out, stride, rows, columns);
}

template <class Product>
void multiply_8x48(const uint32_t* a, const uint32_t* b, int64_t words, const int32_t* start, bool first, void* out,
                   int64_t stride, int64_t rows, int64_t columns) {
  if (rows <= 2)
    by_columns<Product, 2>(a, b, words, start, first, out, stride, rows, columns);
  else
    by_columns<Product, 8>(a, b, words, start, first, out, stride, rows, columns);
}

}  // namespace
