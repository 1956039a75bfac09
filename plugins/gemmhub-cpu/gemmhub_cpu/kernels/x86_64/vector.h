// Eight words of 32 bits, and the conversions of packing and of the epilogue, by AVX2. aarch64/vector.h has them by NEON.
#pragma once
#pragma GCC target("avx2,fma,f16c")

#include <immintrin.h>

#include "../unit.h"

namespace gemmhub {

using Words = __m256i;
using Floats = __m256;

inline Words load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void store(void* to, Words v) { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }
inline void store_first_half(void* to, Words v) { _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_castsi256_si128(v)); }
inline Words zeros() { return _mm256_setzero_si256(); }

inline __m128i load_16(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
inline __m128i load_8(const void* from) { return _mm_loadl_epi64(static_cast<const __m128i*>(from)); }
inline Words joined(__m128i low, __m128i high) { return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1); }

inline Words bits(Floats v) { return _mm256_castps_si256(v); }
inline Floats floats(Words v) { return _mm256_castsi256_ps(v); }
inline Floats spread(float value) { return _mm256_set1_ps(value); }
inline Floats times(Floats x, Floats y) { return _mm256_mul_ps(x, y); }
inline Floats plus(Floats x, Floats y) { return _mm256_add_ps(x, y); }
inline Floats of_integers(Floats x) { return _mm256_cvtepi32_ps(bits(x)); }  // whose bits are those of int32
inline Floats positive(Floats x) { return _mm256_max_ps(_mm256_setzero_ps(), x); }  // in this order a NaN comes through

inline Floats quotient(Floats x, Floats y) { return _mm256_div_ps(x, y); }
inline Floats lower(Floats x, Floats y) { return _mm256_min_ps(x, y); }
inline Floats higher(Floats x, Floats y) { return _mm256_max_ps(x, y); }
inline Floats rounded(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats power_of_2(Floats n) {  // n is an integer from -126 to 127
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline Floats zero_below(Floats value, Floats x, float limit) {  // 0 where x < limit
  return _mm256_andnot_ps(_mm256_cmp_ps(x, spread(limit), _CMP_LT_OQ), value);
}
inline Floats chosen_by_sign(Floats x, Floats negative, Floats other) { return _mm256_blendv_ps(other, negative, x); }

inline Floats fused(Floats sum, Floats x, Floats y) { return _mm256_fmadd_ps(x, y, sum); }
inline Words added(Words x, Words y) { return _mm256_add_epi32(x, y); }
inline Words product(Words x, Words y) { return _mm256_mullo_epi32(x, y); }
inline Words bits_of(int32_t value) { return _mm256_set1_epi32(value); }  // 8 times

// Eight float64, for vectors.
struct Doubles {
  __m256d low, high;
};
inline Doubles wide_doubles(const void* from) {
  const double* const at = static_cast<const double*>(from);
  return {_mm256_loadu_pd(at), _mm256_loadu_pd(at + 4)};
}
inline void store(double* to, Doubles v) { _mm256_storeu_pd(to, v.low), _mm256_storeu_pd(to + 4, v.high); }
inline Doubles fused(Doubles sum, Doubles x, double y) {
  const __m256d all = _mm256_set1_pd(y);
  return {_mm256_fmadd_pd(x.low, all, sum.low), _mm256_fmadd_pd(x.high, all, sum.high)};
}

// Sums of int8 by int16, for vectors: of 16 contiguous products, and of two rows of 8 contiguous columns.
inline Words fused_along_k(Words sum, const void* from, const int16_t* x) {
  return added(sum, _mm256_madd_epi16(_mm256_cvtepi8_epi16(load_16(from)), load(x)));
}
inline Words spread_pair(const int16_t* x) {
  int32_t both;
  __builtin_memcpy(&both, x, 4);
  return _mm256_set1_epi32(both);
}
inline Words fused_along_lanes(Words sum, const void* row, const void* next, Words pair) {
  return added(sum, _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(load_8(row), load_8(next))), pair));
}

// The first eight bytes as float32, exactly. float8_e5m2 is the high byte of a float16; float8_e4m3fn, whose one NaN has all
// bits set, fits into one that is 2^8 times smaller.
template <int64_t kDtype>
inline Floats of_bytes(__m128i bytes) {
  static_assert(kDtype == kInt8 || kDtype == kE4m3 || kDtype == kE5m2);
  if constexpr (kDtype == kInt8) return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  if constexpr (kDtype == kE5m2) return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8));
  const __m128i wide = _mm_cvtepi8_epi16(bytes), sign = _mm_and_si128(wide, _mm_set1_epi16(static_cast<int16_t>(0x8000)));
  const __m128i size = _mm_and_si128(wide, _mm_set1_epi16(0x7f));
  const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(size, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7c00));
  return times(_mm256_cvtph_ps(_mm_or_si128(_mm_or_si128(sign, nan), _mm_slli_epi16(size, 7))), spread(256));
}

// Eight contiguous elements as float32.
template <int64_t kDtype>
inline Floats wide(const void* from) {
  if constexpr (kDtype == kFloat16) return _mm256_cvtph_ps(load_16(from));
  if constexpr (kDtype == kBfloat16) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(from)), 16));
  return _mm256_loadu_ps(static_cast<const float*>(from));
}

// AVX512_BF16 has an instruction that rounds to bfloat16. It writes subnormal results as 0.
inline bool has_rounding_to_bfloat16() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl");
}
// As an asm statement: it needs no other instruction of AVX-512, so that the rest of the epilogue is compiled once.
inline __m128i bfloat16_by_instruction(Floats values) {
  __m128i narrow;
  asm("%{evex%} vcvtneps2bf16 %1, %0" : "=x"(narrow) : "x"(values));
  return narrow;
}

inline void stream(void* to, __m128i v) { _mm_stream_si128(static_cast<__m128i*>(to), v); }
inline void end_streaming() { _mm_sfence(); }  // what was streamed is seen by other threads

// Rounded to nearest, ties to even; a NaN stays a NaN. kByInstruction: has_rounding_to_bfloat16(). kStreamed: past the
// caches, to an address that is a multiple of the vector's size.
template <int64_t kDtype, bool kByInstruction, bool kStreamed>
inline void narrow(Floats values, void* to) {
  const auto put = [to](__m128i v) { kStreamed ? stream(to, v) : _mm_storeu_si128(static_cast<__m128i*>(to), v); };
  if constexpr (kDtype == kFloat16) {
    put(_mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
  } else if constexpr (kDtype == kBfloat16 && kByInstruction) {
    put(bfloat16_by_instruction(values));
  } else if constexpr (kDtype == kBfloat16) {
    const Words v = bits(values);
    const Words even = _mm256_and_si256(_mm256_srli_epi32(v, 16), _mm256_set1_epi32(1));
    const Words rounded = _mm256_srli_epi32(_mm256_add_epi32(v, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff))), 16);
    const Words nan = _mm256_or_si256(_mm256_srli_epi32(v, 16), _mm256_set1_epi32(0x40));
    const Words all = _mm256_blendv_epi8(rounded, nan, bits(_mm256_cmp_ps(values, values, _CMP_UNORD_Q)));
    put(_mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
  } else if constexpr (kStreamed) {
    _mm256_stream_ps(static_cast<float*>(to), values);
  } else {
    _mm256_storeu_ps(static_cast<float*>(to), values);
  }
}

}  // namespace gemmhub
