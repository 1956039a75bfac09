// Element types of matrices, and exact conversions between them and the types that products are computed in.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace musa_double {

enum class Kind { f16, bf16, f32, f64, c32, c64, i8, i32, e4m3, e5m2 };

using c32 = std::complex<float>;
using c64 = std::complex<double>;

// A float of up to 16 bits. Without infinity ("fn") the top exponent holds numbers too, and one NaN.
template <class Bits, int exponent_bits, int fraction_bits, bool has_infinity>
struct SmallFloat {
  static constexpr int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
  static constexpr int fraction_mask = (1 << fraction_bits) - 1;
  Bits bits;

  operator float() const {
    const int exponent = bits >> fraction_bits & top, fraction = bits & fraction_mask;
    const float sign = bits >> (exponent_bits + fraction_bits) ? -1.0f : 1.0f;
    if (exponent == top && has_infinity) return fraction ? NAN : sign * INFINITY;
    if (exponent == top && fraction == fraction_mask) return NAN;
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), 1 - bias - fraction_bits);
    return sign * std::ldexp(static_cast<float>(fraction + fraction_mask + 1), exponent - bias - fraction_bits);
  }

  // The nearest number, ties to even, in one rounding.
  static SmallFloat nearest(double value) {
    static_assert(has_infinity, "results are never stored in a type without infinity");
    const int sign = std::signbit(value) << (exponent_bits + fraction_bits);
    const auto make = [&](int exponent, int fraction) {
      return SmallFloat{static_cast<Bits>(sign | exponent << fraction_bits | fraction)};
    };
    value = std::fabs(value);
    if (std::isnan(value)) return make(top, 1 << (fraction_bits - 1));
    const int exponent = value == 0 || std::isinf(value) ? 1 - bias : std::max(std::ilogb(value), 1 - bias);
    const double steps = std::nearbyint(std::ldexp(value, fraction_bits - exponent));
    // Counted from the smallest subnormal, the codes are consecutive: a carry moves to the next exponent by itself.
    if (std::isinf(value)) return make(top, 0);
    const int64_t code = static_cast<int64_t>(exponent - 1 + bias) * (fraction_mask + 1) + static_cast<int64_t>(steps);
    if (code >= static_cast<int64_t>(top) << fraction_bits) return make(top, 0);
    return make(0, static_cast<int>(code));
  }
};
using f16 = SmallFloat<uint16_t, 5, 10, true>;
using bf16 = SmallFloat<uint16_t, 8, 7, true>;
using e4m3 = SmallFloat<uint8_t, 4, 3, false>;
using e5m2 = SmallFloat<uint8_t, 5, 2, true>;

// Calls function(E{}) with an element of the C++ type that stands for kind.
template <class Function>
decltype(auto) with_kind(Kind kind, Function&& function) {
  switch (kind) {
    case Kind::f16:
      return function(f16{});
    case Kind::bf16:
      return function(bf16{});
    case Kind::f32:
      return function(float{});
    case Kind::f64:
      return function(double{});
    case Kind::c32:
      return function(c32{});
    case Kind::c64:
      return function(c64{});
    case Kind::i8:
      return function(int8_t{});
    case Kind::i32:
      return function(int32_t{});
    case Kind::e4m3:
      return function(e4m3{});
    case Kind::e5m2:
      return function(e5m2{});
  }
  __builtin_unreachable();
}

inline size_t size_of(Kind kind) {
  return with_kind(kind, [](auto element) { return sizeof element; });
}

template <class T>
constexpr bool is_complex = std::is_same_v<T, c32> || std::is_same_v<T, c64>;

// An element as T: exact for every pair that the type tables allow. The real part where only that fits.
template <class T, class E>
T widen(E element) {
  if constexpr (is_complex<T>) {
    using Real = typename T::value_type;
    if constexpr (is_complex<E>)
      return T(static_cast<Real>(element.real()), static_cast<Real>(element.imag()));
    else
      return T(widen<Real>(element));
  } else if constexpr (is_complex<E>) {
    return static_cast<T>(element.real());
  } else if constexpr (std::is_arithmetic_v<E>) {
    return static_cast<T>(element);
  } else {
    return static_cast<T>(static_cast<float>(element));
  }
}

// A result rounded once to E.
template <class E>
E narrow(double value) {
  if constexpr (std::is_same_v<E, f16> || std::is_same_v<E, bf16>)
    return E::nearest(value);
  else
    return static_cast<E>(value);
}

// Keeps the 10 fraction bits of TF32, rounding to nearest even.
inline float round_to_tf32(float value) {
  if (!std::isfinite(value)) return value;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace musa_double
