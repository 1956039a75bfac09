// How the micro-kernels for NEON load and store the sums of a vector of columns of a row, or of fewer at its edge.
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

// `words` of 4, or none.
inline uint32x4_t load_words(const uint32_t* at, int64_t words) {
  if (words >= 4) return vld1q_u32(at);
  uint32_t edge[4] = {};
  if (words > 0) std::memcpy(edge, at, 4 * words);
  return vld1q_u32(edge);
}
inline void store_words(uint32x4_t v, uint32_t* at, int64_t words) {
  if (words >= 4) return vst1q_u32(at, v);
  uint32_t edge[4];
  vst1q_u32(edge, v);
  if (words > 0) std::memcpy(at, edge, 4 * words);
}

// `sum` is never referred to: the compiler would keep it in memory during the loop, too.
template <class Vector>
inline void add_to_row(Vector sum, float* to, int64_t columns, bool first) {
  uint32_t* const at = reinterpret_cast<uint32_t*>(to);
  store_words(plus(sum, first ? vdupq_n_u32(0) : load_words(at, columns)), at, columns);
}

}  // namespace
