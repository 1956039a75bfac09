// The loop of the micro-kernels for AVX-512: 8 rows by three vectors: 48 columns of 4 bytes, 24 of 8. The sums begin at what
// the result holds, as those of tile_4x24.h. Included by one file for each kind of product, which compiles it for its own
// instructions.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "../unit.h"

namespace {

struct Integers {
  using Vector = __m512i;
  using Element = int32_t;
  static inline __attribute__((always_inline)) Vector start(const int32_t* sums, int64_t row) {
    return sums ? _mm512_set1_epi32(sums[row]) : _mm512_setzero_si512();
  }
  static inline __attribute__((always_inline)) Vector all(const Element* a) { return _mm512_set1_epi32(*a); }
  static inline __attribute__((always_inline)) Vector vector(const Element* b) { return _mm512_loadu_si512(b); }
  static inline __attribute__((always_inline)) Vector sums(const Element* at, __mmask16 mask) {
    return _mm512_maskz_loadu_epi32(mask, at);
  }
  static inline __attribute__((always_inline)) void store(Vector sum, Element* at, __mmask16 mask) {
    _mm512_mask_storeu_epi32(at, mask, sum);
  }
};

struct Floats {
  using Vector = __m512;
  using Element = float;
  static inline __attribute__((always_inline)) Vector start(const int32_t*, int64_t) { return _mm512_setzero_ps(); }
  static inline __attribute__((always_inline)) Vector all(const Element* a) { return _mm512_set1_ps(*a); }
  static inline __attribute__((always_inline)) Vector vector(const Element* b) { return _mm512_loadu_ps(b); }
  static inline __attribute__((always_inline)) Vector sums(const Element* at, __mmask16 mask) {
    return _mm512_maskz_loadu_ps(mask, at);
  }
  static inline __attribute__((always_inline)) void store(Vector sum, Element* at, __mmask16 mask) {
    _mm512_mask_storeu_ps(at, mask, sum);
  }
};

struct Doubles {
  using Vector = __m512d;
  using Element = double;
  static inline __attribute__((always_inline)) Vector start(const int32_t*, int64_t) { return _mm512_setzero_pd(); }
  static inline __attribute__((always_inline)) Vector all(const Element* a) { return _mm512_set1_pd(*a); }
  static inline __attribute__((always_inline)) Vector vector(const Element* b) { return _mm512_loadu_pd(b); }
  static inline __attribute__((always_inline)) Vector sums(const Element* at, __mmask8 mask) {
    return _mm512_maskz_loadu_pd(mask, at);
  }
  static inline __attribute__((always_inline)) void store(Vector sum, Element* at, __mmask8 mask) {
    _mm512_mask_storeu_pd(at, mask, sum);
  }
};

// The accumulators are 24 variables, not an array, which the compiler would keep in memory, too. Of the 8 rows and three
// vectors of a micro-panel kRows and kVectors are multiplied.
template <class Product, int kRows, int kVectors>
void tile_of(const uint32_t* packed_a, const uint32_t* packed_b, int64_t words, const int32_t* start, bool first, void* out,
             int64_t stride, int64_t rows, int64_t columns) {
  using Vector = typename Product::Vector;
  using Element = typename Product::Element;
  constexpr int64_t kLanes = 64 / sizeof(Element), kWords = sizeof(Element) / 4;
  const Element *a = reinterpret_cast<const Element*>(packed_a), *b = reinterpret_cast<const Element*>(packed_b);
  Element* const at = static_cast<Element*>(out);
  const auto first_columns = [](int64_t count) {
    return static_cast<__mmask16>(count >= kLanes ? (1u << kLanes) - 1 : count <= 0 ? 0 : (1u << count) - 1);
  };
  [[maybe_unused]] const __mmask16 low = first_columns(columns), middle = first_columns(columns - kLanes),
                                   high = first_columns(columns - 2 * kLanes);
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define BEGIN(i)                                                                                       \
  [[maybe_unused]] Vector x##i = Product::start(i < kRows && first ? start : nullptr, i), y##i = x##i, \
                          z##i = x##i;
  EACH_ROW(BEGIN)
#define LOAD(i)                                                                                     \
  if (i < kRows && i < rows) {                                                                      \
    x##i = Product::sums(at + i * stride, low);                                                     \
    if constexpr (kVectors > 1) y##i = Product::sums(at + i * stride + kLanes, middle);             \
    if constexpr (kVectors > 2) z##i = Product::sums(at + i * stride + 2 * kLanes, high);           \
  }
  if (!first) { EACH_ROW(LOAD) }
#define PREFETCH(i)                                                                                    \
  if constexpr (i < kRows) {                                                                           \
    __builtin_prefetch(at + (i + 8) * stride, 1);                                                      \
    if constexpr (kVectors > 1) __builtin_prefetch(at + (i + 8) * stride + kLanes, 1);                 \
    if constexpr (kVectors > 2) __builtin_prefetch(at + (i + 8) * stride + 2 * kLanes, 1);             \
  }
  EACH_ROW(PREFETCH)  // the sums of the next micro-tile, while the products of this one are made
  for (int64_t q = 0; q < words; q += kWords, a += 8, b += 3 * kLanes) {
    [[maybe_unused]] const Vector x = Product::vector(b), y = Product::vector(b + kLanes),
                                  z = Product::vector(b + 2 * kLanes);
#define MULTIPLY(i)                                                  \
  if constexpr (i < kRows) {                                         \
    const Vector all = Product::all(a + i);                          \
    x##i = Product::add(x##i, x, all);                               \
    if constexpr (kVectors > 1) y##i = Product::add(y##i, y, all);   \
    if constexpr (kVectors > 2) z##i = Product::add(z##i, z, all);   \
  }
    EACH_ROW(MULTIPLY)
  }
#define STORE(i)                                                                               \
  if (i < kRows && i < rows) {                                                                 \
    Product::store(x##i, at + i * stride, low);                                                \
    if constexpr (kVectors > 1) Product::store(y##i, at + i * stride + kLanes, middle);        \
    if constexpr (kVectors > 2) Product::store(z##i, at + i * stride + 2 * kLanes, high);      \
  }
  EACH_ROW(STORE)
#undef EACH_ROW
#undef BEGIN
#undef LOAD
#undef PREFETCH
#undef MULTIPLY
#undef STORE
}

template <class Product, int kRows>
void by_columns(const uint32_t* a, const uint32_t* b, int64_t words, const int32_t* start, bool first, void* out,
                int64_t stride, int64_t rows, int64_t columns) {
  constexpr int64_t kLanes = 64 / sizeof(typename Product::Element);
  if (columns > 2 * kLanes)
    tile_of<Product, kRows, 3>(a, b, words, start, first, out, stride, rows, columns);
  else if (columns > kLanes)
    tile_of<Product, kRows, 2>(a, b, words, start, first, out, stride, rows, columns);
  else
    tile_of<Product, kRows, 1>(a, b, words, start, first, out, stride, rows, columns);
}

template <class Product>
void multiply_8_rows(const uint32_t* a, const uint32_t* b, int64_t words, const int32_t* start, bool first, void* out,
                     int64_t stride, int64_t rows, int64_t columns) {
  if (rows <= 2)
    by_columns<Product, 2>(a, b, words, start, first, out, stride, rows, columns);
  else
    by_columns<Product, 8>(a, b, words, start, first, out, stride, rows, columns);
}

}  // namespace
