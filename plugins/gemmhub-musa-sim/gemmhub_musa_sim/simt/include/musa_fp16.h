/* IEEE half precision. */
#ifndef MUSA_SIM_FP16_H
#define MUSA_SIM_FP16_H
#include "musa_16bit.h"

namespace musa_sim {
MUSA_SIM_SCALAR float half_to_float(unsigned short bits) {
#if defined(__FLT16_MANT_DIG__)
  _Float16 value;
  __builtin_memcpy(&value, &bits, 2);
  return float(value);
#else
  /* Scaled by 2^112 a half's bits are those of a float, apart from infinities and NaNs. */
  unsigned word = (bits & 0x7fffu) << 13;
  float value, scale = 0x1p112f;
  __builtin_memcpy(&value, &word, 4);
  value *= scale;
  __builtin_memcpy(&word, &value, 4);
  if ((bits & 0x7c00u) == 0x7c00u) word |= 0x7f800000u;
  word |= (bits & 0x8000u) << 16;
  __builtin_memcpy(&value, &word, 4);
  return value;
#endif
}

MUSA_SIM_SCALAR unsigned short float_to_half(float value) {
  unsigned short bits;
#if defined(__FLT16_MANT_DIG__)
  const _Float16 rounded = _Float16(value);
  __builtin_memcpy(&bits, &rounded, 2);
#else
  unsigned word;
  __builtin_memcpy(&word, &value, 4);
  const unsigned short sign = (word >> 16) & 0x8000u;
  word &= 0x7fffffffu;
  if (word > 0x7f800000u) return sign | 0x7e00u;
  if (word >= 0x477ff000u) return sign | 0x7c00u; /* 65520 and more round to infinity */
  if (word < 0x38800000u) {                       /* subnormal: adding 0.5 leaves the rounded bits at the end */
    float small;
    __builtin_memcpy(&small, &word, 4);
    small += 0.5f;
    __builtin_memcpy(&word, &small, 4);
    return sign | (word - 0x3f000000u);
  }
  word += 0xfffu + ((word >> 13) & 1); /* to nearest, ties to even */
  bits = sign | ((word - 0x38000000u) >> 13);
#endif
  return bits;
}
}  // namespace musa_sim

MUSA_SIM_16BIT_TYPE(__half, __half2, musa_sim::half_to_float, musa_sim::float_to_half)
typedef __half half;
typedef __half2 half2;

MUSA_SIM_SCALAR float __half2float(__half h) { return float(h); }
MUSA_SIM_SCALAR __half __float2half(float f) { return __half(f); }
MUSA_SIM_SCALAR __half __float2half_rn(float f) { return __half(f); }
MUSA_SIM_SCALAR float2 __half22float2(__half2 v) { return float2{float(v.x), float(v.y)}; }
MUSA_SIM_SCALAR __half2 __float22half2_rn(float2 v) { return __half2{__half(v.x), __half(v.y)}; }
MUSA_SIM_SCALAR __half2 __floats2half2_rn(float x, float y) { return __half2{__half(x), __half(y)}; }
MUSA_SIM_SCALAR __half2 __half2half2(__half h) { return __half2{h, h}; }
MUSA_SIM_SCALAR __half2 __halves2half2(__half x, __half y) { return __half2{x, y}; }
MUSA_SIM_SCALAR __half __low2half(__half2 v) { return v.x; }
MUSA_SIM_SCALAR __half __high2half(__half2 v) { return v.y; }

#endif
