// int8 by NEON's dot products: sdot adds four products of signed bytes to 32 bits, which wrap.
#pragma GCC target("arch=armv8.2-a+dotprod")
#include "tile_8x12.h"

namespace {
struct Product {
  using Vector = int32x4_t;
  static constexpr int64_t kWords = 1;
  template <int kLane>
  static inline __attribute__((always_inline)) Vector add(Vector sum, uint32x4_t b, uint32x4_t a) {
    return vdotq_laneq_s32(sum, vreinterpretq_s8_u32(b), vreinterpretq_s8_u32(a), kLane);
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kInt8Dot = {Word::kInt8x4, 8, 12, 1, 256, Order::kWords, Order::kWords,
                                         nullptr, multiply_8_rows<Product>, nullptr, nullptr};
