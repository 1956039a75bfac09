// int8 by NEON's matrix instruction: smmla adds 2 x 2 sums of eight products of signed bytes to 32 bits, which wrap.
#pragma GCC target("arch=armv8.2-a+i8mm")
#include "tile_mmla.h"

namespace {
struct Product {
  using Vector = int32x4_t;
  static inline __attribute__((always_inline)) Vector add(Vector sum, uint32x4_t a, uint32x4_t b) {
    return vmmlaq_s32(sum, vreinterpretq_s8_u32(a), vreinterpretq_s8_u32(b));
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kInt8Mmla = {Word::kInt8x4, 8, 12, 2, 256, Order::kPairs, Order::kPairs,
                                          nullptr, multiply_mmla<Product>, nullptr, nullptr};
