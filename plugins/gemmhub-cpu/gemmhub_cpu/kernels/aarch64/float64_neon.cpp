// float64 by NEON's fused multiply-add, one chain along k.
#include "tile_8x12.h"

namespace {
struct Product {
  using Vector = float64x2_t;
  static constexpr int64_t kWords = 2;
  template <int kLane>
  static inline __attribute__((always_inline)) Vector add(Vector sum, uint32x4_t b, uint32x4_t a) {
    return vfmaq_laneq_f64(sum, vreinterpretq_f64_u32(b), vreinterpretq_f64_u32(a), kLane);
  }
};
}  // namespace

const gemmhub::Unit gemmhub::kFloat64Neon = {Word::kFloat64Half, 8, 6, 2, 512, Order::kWords, Order::kWords,
                                           nullptr, multiply_8_rows<Product>, nullptr, nullptr};
