// Eight words of 32 bits, and the conversions of packing and of the epilogue, by NEON. x86_64/vector.h has them by AVX2.
#pragma once

#include <arm_neon.h>

#include "../unit.h"

namespace gemmhub {

struct Words {
  uint32x4_t low, high;
};
struct Floats {
  float32x4_t low, high;
};

inline Words load(const void* from) {
  const uint8_t* at = static_cast<const uint8_t*>(from);
  return {vreinterpretq_u32_u8(vld1q_u8(at)), vreinterpretq_u32_u8(vld1q_u8(at + 16))};
}
inline void store_first_half(void* to, Words v) { vst1q_u8(static_cast<uint8_t*>(to), vreinterpretq_u8_u32(v.low)); }
inline void store(void* to, Words v) {
  store_first_half(to, v);
  vst1q_u8(static_cast<uint8_t*>(to) + 16, vreinterpretq_u8_u32(v.high));
}
inline Words zeros() { return {vdupq_n_u32(0), vdupq_n_u32(0)}; }

inline uint16x8_t load_16(const void* from) { return vreinterpretq_u16_u8(vld1q_u8(static_cast<const uint8_t*>(from))); }

inline Words bits(Floats v) { return {vreinterpretq_u32_f32(v.low), vreinterpretq_u32_f32(v.high)}; }
inline Floats floats(Words v) { return {vreinterpretq_f32_u32(v.low), vreinterpretq_f32_u32(v.high)}; }
inline Floats spread(float value) { return {vdupq_n_f32(value), vdupq_n_f32(value)}; }
inline Floats times(Floats x, Floats y) { return {vmulq_f32(x.low, y.low), vmulq_f32(x.high, y.high)}; }
inline Floats plus(Floats x, Floats y) { return {vaddq_f32(x.low, y.low), vaddq_f32(x.high, y.high)}; }
inline Floats of_integers(Floats x) {  // whose bits are those of int32
  return {vcvtq_f32_s32(vreinterpretq_s32_f32(x.low)), vcvtq_f32_s32(vreinterpretq_s32_f32(x.high))};
}
inline Floats positive(Floats x) { return {vmaxq_f32(x.low, vdupq_n_f32(0)), vmaxq_f32(x.high, vdupq_n_f32(0))}; }
inline Floats quotient(Floats x, Floats y) { return {vdivq_f32(x.low, y.low), vdivq_f32(x.high, y.high)}; }
inline Floats lower(Floats x, Floats y) { return {vminq_f32(x.low, y.low), vminq_f32(x.high, y.high)}; }
inline Floats higher(Floats x, Floats y) { return {vmaxq_f32(x.low, y.low), vmaxq_f32(x.high, y.high)}; }
inline Floats rounded(Floats x) { return {vrndnq_f32(x.low), vrndnq_f32(x.high)}; }
inline float32x4_t power_of_2(float32x4_t n) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}
inline Floats power_of_2(Floats n) { return {power_of_2(n.low), power_of_2(n.high)}; }  // an integer from -126 to 127
inline float32x4_t zero_where(uint32x4_t mask, float32x4_t value) {
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value), mask));
}
inline Floats zero_below(Floats value, Floats x, float limit) {  // 0 where x < limit
  const float32x4_t least = vdupq_n_f32(limit);
  return {zero_where(vcltq_f32(x.low, least), value.low), zero_where(vcltq_f32(x.high, least), value.high)};
}
inline float32x4_t chosen_by_sign(float32x4_t x, float32x4_t negative, float32x4_t other) {
  return vbslq_f32(vcltq_f32(x, vdupq_n_f32(0)), negative, other);
}
inline Floats chosen_by_sign(Floats x, Floats negative, Floats other) {
  return {chosen_by_sign(x.low, negative.low, other.low), chosen_by_sign(x.high, negative.high, other.high)};
}

inline Floats fused(Floats sum, Floats x, Floats y) {
  return {vfmaq_f32(sum.low, x.low, y.low), vfmaq_f32(sum.high, x.high, y.high)};
}
inline Words added(Words x, Words y) { return {vaddq_u32(x.low, y.low), vaddq_u32(x.high, y.high)}; }
inline Words product(Words x, Words y) { return {vmulq_u32(x.low, y.low), vmulq_u32(x.high, y.high)}; }
inline Words bits_of(int32_t value) {  // 8 times
  const uint32x4_t four = vdupq_n_u32(static_cast<uint32_t>(value));
  return {four, four};
}

// Eight float64, for vectors.
struct Doubles {
  float64x2_t pairs[4];
};
inline Doubles wide_doubles(const void* from) {
  const double* const at = static_cast<const double*>(from);
  return {{vld1q_f64(at), vld1q_f64(at + 2), vld1q_f64(at + 4), vld1q_f64(at + 6)}};
}
inline void store(double* to, const Doubles& v) {
  for (int i = 0; i < 4; ++i) vst1q_f64(to + 2 * i, v.pairs[i]);
}
inline Doubles fused(const Doubles& sum, const Doubles& x, double y) {
  Doubles result;
  for (int i = 0; i < 4; ++i) result.pairs[i] = vfmaq_n_f64(sum.pairs[i], x.pairs[i], y);
  return result;
}

// Sums of int8 by int16, for vectors: of 16 contiguous products, and of two rows of 8 contiguous columns.
inline Words fused_along_k(Words sum, const void* from, const int16_t* x) {
  const int8x16_t v = vld1q_s8(static_cast<const int8_t*>(from));
  const int16x8_t a = vmovl_s8(vget_low_s8(v)), b = vmovl_s8(vget_high_s8(v)), p = vld1q_s16(x), q = vld1q_s16(x + 8);
  int32x4_t low = vreinterpretq_s32_u32(sum.low), high = vreinterpretq_s32_u32(sum.high);
  low = vmlal_high_s16(vmlal_s16(low, vget_low_s16(a), vget_low_s16(p)), a, p);
  high = vmlal_high_s16(vmlal_s16(high, vget_low_s16(b), vget_low_s16(q)), b, q);
  return {vreinterpretq_u32_s32(low), vreinterpretq_u32_s32(high)};
}
inline Words spread_pair(const int16_t* x) {
  return {vdupq_n_u32(static_cast<uint16_t>(x[0])), vdupq_n_u32(static_cast<uint16_t>(x[1]))};
}
inline Words fused_along_lanes(Words sum, const void* row, const void* next, Words pair) {
  int32x4_t low = vreinterpretq_s32_u32(sum.low), high = vreinterpretq_s32_u32(sum.high);
  const int16x8_t first = vmovl_s8(vld1_s8(static_cast<const int8_t*>(row)));
  const int16x8_t second = vmovl_s8(vld1_s8(static_cast<const int8_t*>(next)));
  const int16x4_t x = vreinterpret_s16_u32(vget_low_u32(pair.low)), y = vreinterpret_s16_u32(vget_low_u32(pair.high));
  low = vmlal_lane_s16(vmlal_lane_s16(low, vget_low_s16(first), x, 0), vget_low_s16(second), y, 0);
  high = vmlal_high_lane_s16(vmlal_high_lane_s16(high, first, x, 0), second, y, 0);
  return {vreinterpretq_u32_s32(low), vreinterpretq_u32_s32(high)};
}

inline Floats of_halves(uint16x8_t halves) {  // float16
  const float16x8_t v = vreinterpretq_f16_u16(halves);
  return {vcvt_f32_f16(vget_low_f16(v)), vcvt_high_f32_f16(v)};
}

// Eight bytes as float32, exactly. float8_e5m2 is the high byte of a float16; float8_e4m3fn, whose one NaN has all bits set,
// fits into one that is 2^8 times smaller.
template <int64_t kDtype>
inline Floats of_bytes(uint8x8_t bytes) {
  static_assert(kDtype == kInt8 || kDtype == kE4m3 || kDtype == kE5m2);
  if constexpr (kDtype == kInt8) {
    const int16x8_t v = vmovl_s8(vreinterpret_s8_u8(bytes));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v))};
  }
  const uint16x8_t high = vshll_n_u8(bytes, 8);
  if constexpr (kDtype == kE5m2) return of_halves(high);
  const uint16x8_t size = vmovl_u8(vand_u8(bytes, vdup_n_u8(0x7f)));
  const uint16x8_t nan = vandq_u16(vceqq_u16(size, vdupq_n_u16(0x7f)), vdupq_n_u16(0x7c00));
  const uint16x8_t half = vorrq_u16(vorrq_u16(vandq_u16(high, vdupq_n_u16(0x8000)), nan), vshlq_n_u16(size, 7));
  return times(of_halves(half), spread(256));
}

// Eight contiguous elements as float32.
template <int64_t kDtype>
inline Floats wide(const void* from) {
  if constexpr (kDtype == kFloat16) return of_halves(load_16(from));
  if constexpr (kDtype == kBfloat16) {
    const uint16x8_t v = load_16(from);
    return {vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(v)), 16)),
            vreinterpretq_f32_u32(vshlq_n_u32(vmovl_high_u16(v), 16))};
  }
  const Words v = load(from);
  return {vreinterpretq_f32_u32(v.low), vreinterpretq_f32_u32(v.high)};
}

inline uint16x4_t bfloat16_of(float32x4_t values) {
  const uint32x4_t v = vreinterpretq_u32_f32(values);
  const uint32x4_t even = vandq_u32(vshrq_n_u32(v, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(v, vaddq_u32(even, vdupq_n_u32(0x7fff)));
  const uint32x4_t nan = vorrq_u32(v, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(values, values), rounded, nan), 16);
}

inline bool has_rounding_to_bfloat16() { return false; }
inline void end_streaming() {}

// Rounded to nearest, ties to even; a NaN stays a NaN.
template <int64_t kDtype, bool kByInstruction, bool kStreamed>
inline void narrow(Floats values, void* to) {
  uint8_t* at = static_cast<uint8_t*>(to);
  if constexpr (kDtype == kFloat16) {
    vst1q_u8(at, vreinterpretq_u8_f16(vcombine_f16(vcvt_f16_f32(values.low), vcvt_f16_f32(values.high))));
  } else if constexpr (kDtype == kBfloat16) {
    vst1q_u8(at, vreinterpretq_u8_u16(vcombine_u16(bfloat16_of(values.low), bfloat16_of(values.high))));
  } else {
    store(to, bits(values));
  }
}

}  // namespace gemmhub
