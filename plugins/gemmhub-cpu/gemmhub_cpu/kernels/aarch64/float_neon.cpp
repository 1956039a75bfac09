// float32 by NEON's fused multiply-add: for 16-bit operands, which packing converts.
#include "tile_8x12.h"

namespace {
struct Product {
  using Vector = float32x4_t;
  template <int kLane>
  static inline __attribute__((always_inline)) Vector add(Vector sum, uint32x4_t b, uint32x4_t a) {
    return vfmaq_laneq_f32(sum, vreinterpretq_f32_u32(b), vreinterpretq_f32_u32(a), kLane);
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kFloatNeon = {Word::kFloat32, 8, 12, 1, 256, Order::kWords, Order::kWords,
                                           nullptr, multiply_8x12<Product>, nullptr, nullptr};
