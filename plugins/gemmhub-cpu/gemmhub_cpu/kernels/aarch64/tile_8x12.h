// The loop of the micro-kernels for NEON: 8 rows by three vectors: 12 columns of 4 bytes, 6 of 8. A vector of a holds an
// element of 4 or 2 rows, of which the instructions take one each. The sums begin at what the result holds, so that those of
// an element are one chain along k, however k is blocked. Included by one file for each kind of product.
#pragma once

#include "store.h"

namespace {

// Of the 8 rows of a micro-panel kRows are multiplied.
template <class Product, int kRows>
void tile_of(const uint32_t* a, const uint32_t* b, int64_t words, bool first, void* out, int64_t stride, int64_t rows,
             int64_t columns) {
  using Vector = typename Product::Vector;
  constexpr int64_t kWords = Product::kWords, kLanes = 4 / kWords, kVectors = 8 / kLanes;
  uint32_t* const at = static_cast<uint32_t*>(out);
  stride *= kWords;
  columns *= kWords;
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define BEGIN(i) [[maybe_unused]] Vector x##i = {}, y##i = {}, z##i = {};
  EACH_ROW(BEGIN)
#define LOAD(i)                                                       \
  if (i < kRows && i < rows) {                                        \
    x##i = (Vector)load_words(at + i * stride, columns);              \
    y##i = (Vector)load_words(at + i * stride + 4, columns - 4);      \
    z##i = (Vector)load_words(at + i * stride + 8, columns - 8);      \
  }
  if (!first) { EACH_ROW(LOAD) }
  for (int64_t q = 0; q < words; q += kWords, a += 8 * kWords, b += 12) {
    const uint32x4_t x = vld1q_u32(b), y = vld1q_u32(b + 4), z = vld1q_u32(b + 8);
    uint32x4_t some[kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      some[i] = vld1q_u32(a + 4 * i);
      asm("" : "+w"(some[i]));  // or the compiler would load 8 elements into 8 registers, for lack of which it would keep
                                // accumulators in memory
    }
#define MULTIPLY(i)                                                                 \
  if constexpr (i < kRows) {                                                        \
    x##i = Product::template add<i % kLanes>(x##i, x, some[i / kLanes]);            \
    y##i = Product::template add<i % kLanes>(y##i, y, some[i / kLanes]);            \
    z##i = Product::template add<i % kLanes>(z##i, z, some[i / kLanes]);            \
  }
    EACH_ROW(MULTIPLY)
  }
#define STORE(i)                                                          \
  if (i < kRows && i < rows) {                                            \
    store_words((uint32x4_t)x##i, at + i * stride, columns);              \
    store_words((uint32x4_t)y##i, at + i * stride + 4, columns - 4);      \
    store_words((uint32x4_t)z##i, at + i * stride + 8, columns - 8);      \
  }
  EACH_ROW(STORE)
#undef EACH_ROW
#undef BEGIN
#undef LOAD
#undef MULTIPLY
#undef STORE
}

template <class Product>
void multiply_8_rows(const uint32_t* a, const uint32_t* b, int64_t words, const int32_t*, bool first, void* out,
                     int64_t stride, int64_t rows, int64_t columns) {
  if (rows <= 2)
    tile_of<Product, 2>(a, b, words, first, out, stride, rows, columns);
  else
    tile_of<Product, 8>(a, b, words, first, out, stride, rows, columns);
}

}  // namespace
