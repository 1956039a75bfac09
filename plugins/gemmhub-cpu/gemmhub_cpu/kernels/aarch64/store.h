// How the micro-kernels for NEON add 4 columns of a row to the result, or fewer at its edge.
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "../unit.h"

namespace {

inline uint32x4_t plus(int32x4_t x, uint32x4_t y) {
  return vreinterpretq_u32_s32(vaddq_s32(x, vreinterpretq_s32_u32(y)));
}
inline uint32x4_t plus(float32x4_t x, uint32x4_t y) {
  return vreinterpretq_u32_f32(vaddq_f32(x, vreinterpretq_f32_u32(y)));
}

// `sum` is never referred to: the compiler would keep it in memory during the loop, too.
template <class Vector>
inline void store_row(Vector sum, float* to, int64_t columns, bool first) {
  uint32_t* const at = reinterpret_cast<uint32_t*>(to);
  if (columns >= 4) {
    vst1q_u32(at, plus(sum, first ? vdupq_n_u32(0) : vld1q_u32(at)));
  } else if (columns > 0) {
    uint32_t edge[4] = {};
    if (!first) std::memcpy(edge, at, 4 * columns);
    vst1q_u32(edge, plus(sum, vld1q_u32(edge)));
    std::memcpy(at, edge, 4 * columns);
  }
}

}  // namespace
