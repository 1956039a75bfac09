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
inline Words plus_128(Words v) { return _mm256_xor_si256(v, _mm256_set1_epi8(static_cast<char>(0x80))); }  // of bytes

inline __m128i load_16(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
inline __m128i load_8(const void* from) { return _mm_loadl_epi64(static_cast<const __m128i*>(from)); }
inline Words joined(__m128i low, __m128i high) { return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1); }

// One conversion of packing: kBytes of an element, kElements of a word, 8 words of elements that are contiguous along k,
// and 8 words of kElements rows that are contiguous along the lanes.
struct Bytes {
  static constexpr int kBytes = 1, kElements = 4;
  static inline Words along_k(const void* from) { return load(from); }
  static inline Words along_lanes(const void* const* rows) {
    const __m128i low = _mm_unpacklo_epi8(load_8(rows[0]), load_8(rows[1]));
    const __m128i high = _mm_unpacklo_epi8(load_8(rows[2]), load_8(rows[3]));
    return joined(_mm_unpacklo_epi16(low, high), _mm_unpackhi_epi16(low, high));
  }
};
struct WidenedBytes {
  static constexpr int kBytes = 1, kElements = 2;
  static inline Words along_k(const void* from) { return _mm256_cvtepi8_epi16(load_16(from)); }
  static inline Words along_lanes(const void* const* rows) {
    return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(load_8(rows[0]), load_8(rows[1])));
  }
};
struct Halves {  // bfloat16 as it is
  static constexpr int kBytes = 2, kElements = 2;
  static inline Words along_k(const void* from) { return load(from); }
  static inline Words along_lanes(const void* const* rows) {
    const __m128i x = load_16(rows[0]), y = load_16(rows[1]);
    return joined(_mm_unpacklo_epi16(x, y), _mm_unpackhi_epi16(x, y));
  }
};

inline void transpose(Words* v) {
  Words s[8], t[8];
  for (int i = 0; i < 8; i += 2) {
    s[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
    s[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    t[i] = _mm256_unpacklo_epi64(s[i], s[i + 2]);
    t[i + 1] = _mm256_unpackhi_epi64(s[i], s[i + 2]);
    t[i + 2] = _mm256_unpacklo_epi64(s[i + 1], s[i + 3]);
    t[i + 3] = _mm256_unpackhi_epi64(s[i + 1], s[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2x128_si256(t[i], t[i + 4], 0x20);
    v[i + 4] = _mm256_permute2x128_si256(t[i], t[i + 4], 0x31);
  }
}

inline Words bits(Floats v) { return _mm256_castps_si256(v); }
inline Floats spread(float value) { return _mm256_set1_ps(value); }
inline Floats times(Floats x, Floats y) { return _mm256_mul_ps(x, y); }
inline Floats plus(Floats x, Floats y) { return _mm256_add_ps(x, y); }
inline Floats positive(Floats x) { return _mm256_max_ps(_mm256_setzero_ps(), x); }  // in this order a NaN comes through

inline Floats fused(Floats sum, Floats x, Floats y) { return _mm256_fmadd_ps(x, y, sum); }
inline Words added(Words x, Words y) { return _mm256_add_epi32(x, y); }

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

// Eight contiguous elements as float32.
template <int64_t kDtype>
inline Floats wide(const void* from) {
  if constexpr (kDtype == kFloat16) return _mm256_cvtph_ps(load_16(from));
  if constexpr (kDtype == kBfloat16) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(from)), 16));
  return _mm256_loadu_ps(static_cast<const float*>(from));
}

// Rounded to nearest, ties to even; a NaN stays a NaN.
template <int64_t kDtype>
inline void narrow(Floats values, void* to) {
  if constexpr (kDtype == kFloat16) {
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
  } else if constexpr (kDtype == kBfloat16) {
    const Words v = bits(values);
    const Words even = _mm256_and_si256(_mm256_srli_epi32(v, 16), _mm256_set1_epi32(1));
    const Words rounded = _mm256_srli_epi32(_mm256_add_epi32(v, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff))), 16);
    const Words nan = _mm256_or_si256(_mm256_srli_epi32(v, 16), _mm256_set1_epi32(0x40));
    const Words all = _mm256_blendv_epi8(rounded, nan, bits(_mm256_cmp_ps(values, values, _CMP_UNORD_Q)));
    _mm_storeu_si128(static_cast<__m128i*>(to),
                     _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
  } else {
    _mm256_storeu_ps(static_cast<float*>(to), values);
  }
}

}  // namespace gemmhub
