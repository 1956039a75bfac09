// The loop of the micro-kernels for AVX2: 4 rows by three vectors: 24 columns of 4 bytes, 12 of 8. The sums begin at what the
// result holds, so that those of an element are one chain along k, however k is blocked. Included by one file for each kind of
// product.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../unit.h"

namespace {

inline __m256i first_words(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(count < 0 ? 0 : count > 8 ? 8 : count)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

struct Integers {
  using Vector = __m256i;
  using Element = int32_t;
  static inline __attribute__((always_inline)) Vector start(const int32_t* sums, int64_t row) {
    return sums ? _mm256_set1_epi32(sums[row]) : _mm256_setzero_si256();
  }
  static inline __attribute__((always_inline)) Vector all(const Element* a) { return _mm256_set1_epi32(*a); }
  static inline __attribute__((always_inline)) Vector vector(const Element* b) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)); }
  static inline __attribute__((always_inline)) Vector sums(const Element* at, __m256i mask) {
    return _mm256_maskload_epi32(at, mask);
  }
  static inline __attribute__((always_inline)) void store(Vector sum, Element* at, __m256i mask) {
    _mm256_maskstore_epi32(at, mask, sum);
  }
};

struct Floats {
  using Vector = __m256;
  using Element = float;
  static inline __attribute__((always_inline)) Vector start(const int32_t*, int64_t) { return _mm256_setzero_ps(); }
  static inline __attribute__((always_inline)) Vector all(const Element* a) { return _mm256_broadcast_ss(a); }
  static inline __attribute__((always_inline)) Vector vector(const Element* b) { return _mm256_loadu_ps(b); }
  static inline __attribute__((always_inline)) Vector sums(const Element* at, __m256i mask) {
    return _mm256_maskload_ps(at, mask);
  }
  static inline __attribute__((always_inline)) void store(Vector sum, Element* at, __m256i mask) {
    _mm256_maskstore_ps(at, mask, sum);
  }
};

struct Doubles {
  using Vector = __m256d;
  using Element = double;
  static inline __attribute__((always_inline)) Vector start(const int32_t*, int64_t) { return _mm256_setzero_pd(); }
  static inline __attribute__((always_inline)) Vector all(const Element* a) { return _mm256_broadcast_sd(a); }
  static inline __attribute__((always_inline)) Vector vector(const Element* b) { return _mm256_loadu_pd(b); }
  static inline __attribute__((always_inline)) Vector sums(const Element* at, __m256i mask) {
    return _mm256_maskload_pd(at, mask);
  }
  static inline __attribute__((always_inline)) void store(Vector sum, Element* at, __m256i mask) {
    _mm256_maskstore_pd(at, mask, sum);
  }
};

template <class Product>
void multiply_4_rows(const uint32_t* packed_a, const uint32_t* packed_b, int64_t words, const int32_t* start, bool first,
                     void* out, int64_t stride, int64_t rows, int64_t columns) {
  using Vector = typename Product::Vector;
  using Element = typename Product::Element;
  constexpr int64_t kLanes = 32 / sizeof(Element), kWords = sizeof(Element) / 4;
  const Element *a = reinterpret_cast<const Element*>(packed_a), *b = reinterpret_cast<const Element*>(packed_b);
  Element* const at = static_cast<Element*>(out);
  const __m256i low = first_words(columns * kWords), middle = first_words((columns - kLanes) * kWords),
                high = first_words((columns - 2 * kLanes) * kWords);
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3)
#define BEGIN(i) Vector x##i = Product::start(first ? start : nullptr, i), y##i = x##i, z##i = x##i;
  EACH_ROW(BEGIN)
#define LOAD(i)                                                                    \
  if (i < rows) {                                                                  \
    x##i = Product::sums(at + i * stride, low);                                    \
    if (columns > kLanes) y##i = Product::sums(at + i * stride + kLanes, middle);  \
    if (columns > 2 * kLanes) z##i = Product::sums(at + i * stride + 2 * kLanes, high); \
  }
  if (!first) { EACH_ROW(LOAD) }
#define PREFETCH(i)                                                 \
  __builtin_prefetch(at + (i + 4) * stride, 1);                     \
  __builtin_prefetch(at + (i + 4) * stride + 16 / kWords, 1);
  EACH_ROW(PREFETCH)  // the sums of the next micro-tile, while the products of this one are made
  for (int64_t q = 0; q < words; q += kWords, a += 4, b += 3 * kLanes) {
    const auto x = Product::vector(b), y = Product::vector(b + kLanes), z = Product::vector(b + 2 * kLanes);
#define MULTIPLY(i)                        \
  {                                        \
    const auto all = Product::all(a + i);  \
    x##i = Product::add(x##i, x, all);     \
    y##i = Product::add(y##i, y, all);     \
    z##i = Product::add(z##i, z, all);     \
  }
    EACH_ROW(MULTIPLY)
  }
#define STORE(i)                                                                    \
  if (i < rows) {                                                                   \
    Product::store(x##i, at + i * stride, low);                                     \
    if (columns > kLanes) Product::store(y##i, at + i * stride + kLanes, middle);   \
    if (columns > 2 * kLanes) Product::store(z##i, at + i * stride + 2 * kLanes, high); \
  }
  EACH_ROW(STORE)
#undef EACH_ROW
#undef BEGIN
#undef LOAD
#undef PREFETCH
#undef MULTIPLY
#undef STORE
}

}  // namespace
