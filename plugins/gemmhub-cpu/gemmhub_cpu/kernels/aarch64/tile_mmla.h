// The loop of the micro-kernels for NEON's matrix instructions: 8 rows by 12 columns. Operands are packed in pairs of words:
// a vector holds two words of two rows or columns, and an instruction adds their 2 x 2 products. Included by one file for
// each kind of product.
#pragma once

#include "store.h"

namespace {

inline int32x4_t with_low_halves(int32x4_t x, int32x4_t y) { return vcombine_s32(vget_low_s32(x), vget_low_s32(y)); }
inline int32x4_t with_high_halves(int32x4_t x, int32x4_t y) { return vcombine_s32(vget_high_s32(x), vget_high_s32(y)); }
inline float32x4_t with_low_halves(float32x4_t x, float32x4_t y) { return vcombine_f32(vget_low_f32(x), vget_low_f32(y)); }
inline float32x4_t with_high_halves(float32x4_t x, float32x4_t y) {
  return vcombine_f32(vget_high_f32(x), vget_high_f32(y));
}

template <class Product>
void multiply_mmla(const uint32_t* a, const uint32_t* b, int64_t words, const int32_t*, bool first, void* out,
                   int64_t stride, int64_t rows, int64_t columns) {
  using Vector = typename Product::Vector;
#define EACH_PAIR(DO) DO(0) DO(1) DO(2) DO(3)
#define BEGIN(i) Vector u##i = {}, v##i = {}, w##i = {}, x##i = {}, y##i = {}, z##i = {};
  EACH_PAIR(BEGIN)
  for (int64_t q = 0; q < words; q += 2, a += 16, b += 24) {
    const uint32x4_t pairs[4] = {vld1q_u32(a), vld1q_u32(a + 4), vld1q_u32(a + 8), vld1q_u32(a + 12)};
    uint32x4_t two;
#define MULTIPLY_U(i) u##i = Product::add(u##i, pairs[i], two);
#define MULTIPLY_V(i) v##i = Product::add(v##i, pairs[i], two);
#define MULTIPLY_W(i) w##i = Product::add(w##i, pairs[i], two);
#define MULTIPLY_X(i) x##i = Product::add(x##i, pairs[i], two);
#define MULTIPLY_Y(i) y##i = Product::add(y##i, pairs[i], two);
#define MULTIPLY_Z(i) z##i = Product::add(z##i, pairs[i], two);
    two = vld1q_u32(b);
    EACH_PAIR(MULTIPLY_U)
    two = vld1q_u32(b + 4);
    EACH_PAIR(MULTIPLY_V)
    two = vld1q_u32(b + 8);
    EACH_PAIR(MULTIPLY_W)
    two = vld1q_u32(b + 12);
    EACH_PAIR(MULTIPLY_X)
    two = vld1q_u32(b + 16);
    EACH_PAIR(MULTIPLY_Y)
    two = vld1q_u32(b + 20);
    EACH_PAIR(MULTIPLY_Z)
  }
  float* at = static_cast<float*>(out);
#define STORE_ROW(row, half, i)                                                               \
  if (row < rows) {                                                                           \
    add_to_row(half(u##i, v##i), at + row * stride, columns, first);                           \
    add_to_row(half(w##i, x##i), at + row * stride + 4, columns - 4, first);                   \
    add_to_row(half(y##i, z##i), at + row * stride + 8, columns - 8, first);                   \
  }
#define STORE(i) STORE_ROW(2 * i, with_low_halves, i) STORE_ROW((2 * i + 1), with_high_halves, i)
  EACH_PAIR(STORE)
#undef EACH_PAIR
#undef BEGIN
#undef MULTIPLY_U
#undef MULTIPLY_V
#undef MULTIPLY_W
#undef MULTIPLY_X
#undef MULTIPLY_Y
#undef MULTIPLY_Z
#undef STORE_ROW
#undef STORE
}

}  // namespace
