// bfloat16 by NEON's matrix instruction: bfmmla adds 2 x 2 sums of four products to float32. It may round sums to odd, read
// subnormal operands as 0 and flush subnormal results.
#pragma GCC target("arch=armv8.2-a+bf16")
#include "tile_mmla.h"

namespace {
struct Product {
  using Vector = float32x4_t;
  static inline __attribute__((always_inline)) Vector add(Vector sum, uint32x4_t a, uint32x4_t b) {
    return vbfmmlaq_f32(sum, (bfloat16x8_t)a, (bfloat16x8_t)b);
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kBfloat16Mmla = {Word::kBfloat16x2, 8, 12, 2, 256, Order::kPairs, Order::kPairs,
                                              nullptr, multiply_mmla<Product>, nullptr, nullptr};
