/* bfloat16: a float's upper half. */
#ifndef MUSA_SIM_BF16_H
#define MUSA_SIM_BF16_H
#include "musa_16bit.h"

namespace musa_sim {
MUSA_SIM_SCALAR float bfloat16_to_float(unsigned short bits) {
  const unsigned word = unsigned(bits) << 16;
  float value;
  __builtin_memcpy(&value, &word, 4);
  return value;
}

MUSA_SIM_SCALAR unsigned short float_to_bfloat16(float value) {
  unsigned word;
  __builtin_memcpy(&word, &value, 4);
  if ((word & 0x7fffffffu) > 0x7f800000u) return (unsigned short)(word >> 16 | 0x40u); /* stays a NaN */
  return (unsigned short)((word + 0x7fffu + (word >> 16 & 1)) >> 16);                  /* ties to even */
}
}  // namespace musa_sim

MUSA_SIM_16BIT_TYPE(__mt_bfloat16, __mt_bfloat162, musa_sim::bfloat16_to_float, musa_sim::float_to_bfloat16)
typedef __mt_bfloat16 mt_bfloat16;
typedef __mt_bfloat162 mt_bfloat162;

MUSA_SIM_SCALAR float __bfloat162float(__mt_bfloat16 h) { return float(h); }
MUSA_SIM_SCALAR __mt_bfloat16 __float2bfloat16(float f) { return __mt_bfloat16(f); }
MUSA_SIM_SCALAR __mt_bfloat16 __float2bfloat16_rn(float f) { return __mt_bfloat16(f); }
MUSA_SIM_SCALAR float2 __bfloat1622float2(__mt_bfloat162 v) { return float2{float(v.x), float(v.y)}; }
MUSA_SIM_SCALAR __mt_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return __mt_bfloat162{__mt_bfloat16(x), __mt_bfloat16(y)};
}

#endif
