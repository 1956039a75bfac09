// What MUTLASS 0.1.1 takes from a MUSA SDK and from mcc that the simulated home has not: included before a source by the
// tests that compile a real checkout. The matrix instructions of mp_22 put their fragments together, as published in
// MUTLASS's mma_traits_mp22.hpp, and let the simulator multiply.
#pragma once
#include <muComplex.h>
#include <musa_bf16.h>
#include <musa_fp16.h>
#include <musa_runtime.h>
#include <musa_simt.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

struct long4 { long x, y, z, w; };
struct ulong4 { unsigned long x, y, z, w; };
struct ulonglong2 { unsigned long long x, y; };
struct ulonglong4 { unsigned long long x, y, z, w; };

static inline int __half2int_rn(__half x) { return static_cast<int>(std::nearbyint(float(x))); }
static inline __half __int2half_rn(int x) { return __half(float(x)); }
static inline __half __uint2half_rn(unsigned x) { return __half(float(x)); }
static inline __half __hneg(__half x) { return __half(-float(x)); }
static inline __half2 __hsub2(__half2 a, __half2 b) { return __half2{a.x - b.x, a.y - b.y}; }
static inline __half hrsqrt(__half x) { return __half(1 / std::sqrt(float(x))); }
static inline __half2 __hneg2(__half2 a) { return __half2{-a.x, -a.y}; }
static inline void __musa_exit() { std::abort(); }

template <class To, class From>
static inline To musa_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}
static inline int __float_as_int(float x) { return musa_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return musa_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return musa_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return musa_bits<float>(x); }
static inline unsigned __umulhi(unsigned x, unsigned y) { return uint64_t(x) * y >> 32; }
static inline uint64_t __umul64hi(uint64_t x, uint64_t y) { return static_cast<unsigned __int128>(x) * y >> 64; }
static inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyintf(x)); }
static inline int __float2int_rz(float x) { return static_cast<int>(x); }
static inline float __int2float_rn(int x) { return static_cast<float>(x); }

// Named in parts of MUTLASS that products here do not use.
int32_t __float2char_rn_sat(float), __float2char_rz_sat(float), __musa_f2uc_rn_sat(float), __musa_f2uc_rz_sat(float);
int32_t __half2int_rz(__half), __half2uint_rn(__half), __half2uint_rz(__half);
int32_t __bfloat162int_rn(__mt_bfloat16), __bfloat162int_rz(__mt_bfloat16);
int32_t __bfloat162uint_rn(__mt_bfloat16), __bfloat162uint_rz(__mt_bfloat16);
float __int2float_rz(int), __uint2float_rn(unsigned), __uint2float_rz(unsigned);
__half __float2half_rz(float), __int2half_rz(int), __uint2half_rz(unsigned);
__mt_bfloat16 __float2bfloat16_rz(float);
__mt_bfloat162 __float22bfloat162_rn(float2);
struct MusaSomething {
  template <class T>
  operator T() const;
};
MusaSomething __musa_float_to_tf32(float);
size_t __cvta_generic_to_shared(const void*);

static inline float muCrealf(muFloatComplex z) { return z.x; }
static inline float muCimagf(muFloatComplex z) { return z.y; }
static inline double muCreal(muDoubleComplex z) { return z.x; }
static inline double muCimag(muDoubleComplex z) { return z.y; }
static inline muFloatComplex make_muFloatComplex(float x, float y) { return {x, y}; }
static inline muDoubleComplex make_muDoubleComplex(double x, double y) { return {x, y}; }

namespace mp22 {

// A fragment of 32 rows: element `value` of `lane` is at row index % 32, step index / 32 along k.
struct Modes {
  int sizes[3], strides[3];
  int value_sizes[2], value_strides[2];
  int index(int lane, int value) const {
    return lane % sizes[0] * strides[0] + lane / sizes[0] % sizes[1] * strides[1] +
           lane / sizes[0] / sizes[1] * strides[2] + value % value_sizes[0] * value_strides[0] +
           value / value_sizes[0] * value_strides[1];
  }
};

// By the bytes of an element; k-major and rows-major.
constexpr Modes kMajor[] = {{{4, 16, 2}, {128, 1, 512}, {4, 2}, {32, 16}},
                            {{4, 16, 2}, {64, 1, 256}, {2, 2}, {32, 16}},
                            {{4, 16, 2}, {32, 1, 128}, {2, 1}, {16, 0}}};
constexpr Modes rowsMajor[] = {{{4, 32, 1}, {4, 32, 0}, {4, 2}, {1, 16}},
                               {{8, 16, 1}, {2, 32, 0}, {2, 2}, {1, 16}},
                               {{16, 8, 1}, {1, 32, 0}, {2, 1}, {16, 0}}};

template <class T>
float wide(const void* registers, int i) {
  T x;
  std::memcpy(&x, static_cast<const char*>(registers) + i * sizeof(T), sizeof(T));
  return float(x);
}

struct Tf32 {
  float stored;
  operator float() const {
    uint32_t bits;
    std::memcpy(&bits, &stored, 4);
    if (std::isfinite(stored)) bits = (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFFu;
    float rounded;
    std::memcpy(&rounded, &bits, 4);
    return rounded;
  }
};

struct Bf16 {
  uint16_t stored;
  operator float() const {
    const uint32_t bits = uint32_t(stored) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
};

// Flags: 2 if a is rows-major, 1 if b is k-major.
template <class T, int K, class Sum>
void multiply(const char* name, Sum* d, const void* a, const void* b, const Sum* c, int flags) {
  constexpr int which = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : 2, values = 32 * K / 128;
  const Modes& modes_a = (flags & 2 ? rowsMajor : kMajor)[which];
  const Modes& modes_b = (flags & 1 ? kMajor : rowsMajor)[which];
  const int lane = int(musaSimLane(128));
  MusaSimExchange* area = musaSimJoin(128, name, nullptr, flags);
  for (int i = 0; i < values; ++i) {
    const int at_a = modes_a.index(lane, i), at_b = modes_b.index(lane, i);
    area->a[at_a % 32 * K + at_a / 32] = wide<T>(a, i);
    area->b[at_b / 32 * 32 + at_b % 32] = wide<T>(b, i);
  }
  musaSimMeet(128);
  musaSimMultiply(area, 32, 32, K);
  for (int i = 0; i < 8; ++i) {
    const int row = (lane >> 3 & 3) + (lane >> 6) * 4 + (i >> 1) * 8;
    const int column = (lane & 7) + (lane >> 5 & 1) * 8 + (i & 1) * 16;
    d[i] = c[i] + static_cast<Sum>(area->c[row * 32 + column]);
  }
}

}  // namespace mp22

#define MP22_INSTRUCTION(name, type, k, sum)                                                                     \
  static inline void name(int32_t* d, const int32_t* a, const int32_t* b, const int32_t* c, int, int, int, int, \
                          int, int flags) {                                                                      \
    mp22::multiply<type, k>(#name, reinterpret_cast<sum*>(d), a, b, reinterpret_cast<const sum*>(c), flags);     \
  }
MP22_INSTRUCTION(__musa_fmma_m32n32k16_mma, __half, 16, float)
MP22_INSTRUCTION(__musa_bfmma_m32n32k16_mma, mp22::Bf16, 16, float)
MP22_INSTRUCTION(__musa_tfmma_m32n32k8_mma, mp22::Tf32, 8, float)
MP22_INSTRUCTION(__musa_imma_m32n32k32_mma, int8_t, 32, int32_t)
#undef MP22_INSTRUCTION
