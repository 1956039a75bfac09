// Operands of matrix instructions as float, which holds each of them exactly.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "musa_bf16.h"
#include "musa_fp16.h"

namespace musa_sim {

// Numbers of public sources (mute/arch/mma_mp31.hpp, TceABDtype), one for each operand here.
enum class Format { kU8, kS8, kF16, kBF16, kTF32, kE4M3, kE5M2 };

constexpr unsigned size_of(Format format) {
  return format == Format::kTF32 ? 4 : format == Format::kF16 || format == Format::kBF16 ? 2 : 1;
}

// The value of 8 bits with that many for the exponent and the mantissa. Without infinities (e4m3) only all ones are NaN.
inline float small_float(unsigned bits, int exponent_bits, int mantissa_bits, bool infinities) {
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
  const float sign = bits & 0x80 ? -1.0f : 1.0f;
  const bool top = exponent == (1 << exponent_bits) - 1;
  if (top && infinities) return mantissa ? NAN : sign * INFINITY;
  if (top && mantissa == (1 << mantissa_bits) - 1) return NAN;
  const int whole = exponent ? mantissa + (1 << mantissa_bits) : mantissa;
  return sign * std::ldexp(static_cast<float>(whole), (exponent ? exponent : 1) - bias - mantissa_bits);
}

inline float value_at(const void* p, Format format) {
  uint8_t byte;
  uint16_t half;
  uint32_t word;
  float value;
  switch (format) {
    case Format::kU8: std::memcpy(&byte, p, 1); return byte;
    case Format::kS8: std::memcpy(&byte, p, 1); return static_cast<int8_t>(byte);
    case Format::kE4M3: std::memcpy(&byte, p, 1); return small_float(byte, 4, 3, false);
    case Format::kE5M2: std::memcpy(&byte, p, 1); return small_float(byte, 5, 2, true);
    case Format::kF16: std::memcpy(&half, p, 2); return half_to_float(half);
    case Format::kBF16: std::memcpy(&half, p, 2); return bfloat16_to_float(half);
    case Format::kTF32:  // the lower 13 bits do not count; that they are cut off, not rounded, is an assumption
      std::memcpy(&word, p, 4);
      word &= ~0x1fffu;
      std::memcpy(&value, &word, 4);
      return value;
  }
  return NAN;
}

}  // namespace musa_sim
