// float32 by NEON's fused multiply-add, one chain along k; packing converts 16-bit operands.
#include "tile_8x12.h"

namespace {
struct Product {
  using Vector = float32x4_t;
  static constexpr int64_t kWords = 1;
  template <int kLane>
  static inline __attribute__((always_inline)) Vector add(Vector sum, uint32x4_t b, uint32x4_t a) {
    return vfmaq_laneq_f32(sum, vreinterpretq_f32_u32(b), vreinterpretq_f32_u32(a), kLane);
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kFloatNeon = {Word::kFloat32, 8, 12, 1, 256, Order::kWords, Order::kWords,
                                           nullptr, multiply_8_rows<Product>, nullptr, nullptr};
