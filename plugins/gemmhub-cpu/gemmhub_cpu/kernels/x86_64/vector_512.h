// Sixteen float32 at a time, for the epilogue, by AVX-512. Names are those of vector.h. Included by one file, which is run
// where has_avx512() of finish.cpp holds.
#pragma once
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl")

#include <immintrin.h>

#include "../unit.h"

namespace {

using namespace gemmhub;

using Floats = __m512;
constexpr int64_t kLanes = 16;

inline Floats spread(float value) { return _mm512_set1_ps(value); }
inline Floats times(Floats x, Floats y) { return _mm512_mul_ps(x, y); }
inline Floats plus(Floats x, Floats y) { return _mm512_add_ps(x, y); }
inline Floats of_integers(Floats x) { return _mm512_cvtepi32_ps(_mm512_castps_si512(x)); }  // whose bits are those of int32
inline Floats positive(Floats x) { return _mm512_max_ps(_mm512_setzero_ps(), x); }  // in this order a NaN comes through
inline Floats quotient(Floats x, Floats y) { return _mm512_div_ps(x, y); }
inline Floats lower(Floats x, Floats y) { return _mm512_min_ps(x, y); }
inline Floats higher(Floats x, Floats y) { return _mm512_max_ps(x, y); }
inline Floats rounded(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats power_of_2(Floats n) {  // n is an integer from -126 to 127
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
inline Floats zero_below(Floats value, Floats x, float limit) {  // 0 where x < limit
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, spread(limit), _CMP_NLT_UQ), value);
}
inline Floats chosen_by_sign(Floats x, Floats negative, Floats other) {
  return _mm512_mask_mov_ps(other, _mm512_cmplt_epi32_mask(_mm512_castps_si512(x), _mm512_setzero_si512()), negative);
}
inline Floats fused(Floats sum, Floats x, Floats y) { return _mm512_fmadd_ps(x, y, sum); }

inline __mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }

inline __m512 widened(__m256i bfloat16) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bfloat16), 16));
}

// Contiguous elements as float32: sixteen, or the first `count`, with zeros behind them.
template <int64_t kDtype>
inline Floats wide(const void* from) {
  if constexpr (kDtype == kFloat32) return _mm512_loadu_ps(from);
  const __m256i halves = _mm256_loadu_si256(static_cast<const __m256i*>(from));
  return kDtype == kFloat16 ? _mm512_cvtph_ps(halves) : widened(halves);
}
template <int64_t kDtype>
inline Floats wide_part(const void* from, int64_t count) {
  if constexpr (kDtype == kFloat32) return _mm512_maskz_loadu_ps(first(count), from);
  const __m256i halves = _mm256_maskz_loadu_epi16(first(count), from);
  return kDtype == kFloat16 ? _mm512_cvtph_ps(halves) : widened(halves);
}

// Rounded to nearest, ties to even; a NaN stays a NaN. kByInstruction: by that of AVX512_BF16, as an asm statement.
template <int64_t kDtype, bool kByInstruction>
inline __m256i halves_of(Floats values) {
  if constexpr (kDtype == kFloat16) return _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
  __m256i narrow;
  if constexpr (kByInstruction) {
    asm("vcvtneps2bf16 %1, %0" : "=v"(narrow) : "v"(values));
  } else {
    const __m512i v = _mm512_castps_si512(values);
    const __m512i high = _mm512_srli_epi32(v, 16), even = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i sum = _mm512_srli_epi32(_mm512_add_epi32(v, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff))), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    narrow = _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(sum, nan, high, _mm512_set1_epi32(0x40)));
  }
  return narrow;
}
inline bool has_rounding_to_bfloat16() { return __builtin_cpu_supports("avx512bf16"); }

// kStreamed: past the caches, to an address that is a multiple of the vector's size.
template <int64_t kDtype, bool kByInstruction, bool kStreamed>
inline void narrow(Floats values, void* to) {
  if constexpr (kDtype == kFloat32) {
    kStreamed ? _mm512_stream_ps(static_cast<float*>(to), values) : _mm512_storeu_ps(to, values);
  } else {
    const __m256i halves = halves_of<kDtype, kByInstruction>(values);
    auto* at = static_cast<__m256i*>(to);
    kStreamed ? _mm256_stream_si256(at, halves) : _mm256_storeu_si256(at, halves);
  }
}
template <int64_t kDtype, bool kByInstruction>
inline void narrow_part(Floats values, void* to, int64_t count) {
  if constexpr (kDtype == kFloat32)
    _mm512_mask_storeu_ps(to, first(count), values);
  else
    _mm256_mask_storeu_epi16(to, first(count), halves_of<kDtype, kByInstruction>(values));
}

}  // namespace
