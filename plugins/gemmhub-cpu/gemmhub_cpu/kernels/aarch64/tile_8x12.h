// The loop of the micro-kernels for NEON: 8 rows by three vectors of 4 columns. A vector of a holds a word of 4 rows, of
// which the instructions take one each. Included by one file for each kind of product.
#pragma once

#include "store.h"

namespace {

// Of the 8 rows of a micro-panel kRows are multiplied.
template <class Product, int kRows>
void tile_8x12(const uint32_t* a, const uint32_t* b, int64_t words, bool first, void* out, int64_t stride, int64_t rows,
               int64_t columns) {
  using Vector = typename Product::Vector;
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define BEGIN(i) [[maybe_unused]] Vector x##i = {}, y##i = {}, z##i = {};
  EACH_ROW(BEGIN)
  for (int64_t q = 0; q < words; ++q, a += 8, b += 12) {
    const uint32x4_t x = vld1q_u32(b), y = vld1q_u32(b + 4), z = vld1q_u32(b + 8);
    uint32x4_t four[2] = {vld1q_u32(a), vld1q_u32(a + 4)};
    asm("" : "+w"(four[0]), "+w"(four[1]));  // or the compiler would load 8 words into 8 registers, for lack of which it
                                             // would keep accumulators in memory
#define MULTIPLY(i)                                            \
  if constexpr (i < kRows) {                                   \
    x##i = Product::template add<i % 4>(x##i, x, four[i / 4]); \
    y##i = Product::template add<i % 4>(y##i, y, four[i / 4]); \
    z##i = Product::template add<i % 4>(z##i, z, four[i / 4]); \
  }
    EACH_ROW(MULTIPLY)
  }
  float* at = static_cast<float*>(out);
#define STORE(i)                                               \
  if (i < kRows && i < rows) {                                 \
    store_row(x##i, at + i * stride, columns, first);          \
    store_row(y##i, at + i * stride + 4, columns - 4, first);  \
    store_row(z##i, at + i * stride + 8, columns - 8, first);  \
  }
  EACH_ROW(STORE)
#undef EACH_ROW
#undef BEGIN
#undef MULTIPLY
#undef STORE
}

template <class Product>
void multiply_8x12(const uint32_t* a, const uint32_t* b, int64_t words, const int32_t*, bool first, void* out,
                   int64_t stride, int64_t rows, int64_t columns) {
  if (rows <= 2)
    tile_8x12<Product, 2>(a, b, words, first, out, stride, rows, columns);
  else
    tile_8x12<Product, 8>(a, b, words, first, out, stride, rows, columns);
}

}  // namespace
