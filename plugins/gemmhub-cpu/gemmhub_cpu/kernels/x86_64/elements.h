// The conversions of packing by AVX2: 8 words, of 4 bytes, from elements of a dtype. aarch64/elements.h has them by NEON.
//
// Each conversion has kBytes of an element and kElements of a word, and reads
//   along_k       8 words of a lane whose elements are contiguous,
//   transposed    the same of 8 lanes, `stride` bytes apart: v[q] is word q of the lanes,
//   along_lanes   a word of 8 lanes, from kElements rows whose lanes are contiguous.
#pragma once
#include "vector.h"

namespace gemmhub {

// 8 lanes of 8 words of 4 bytes. The halves of two lanes are joined by loads, which leaves 8 shuffles for 4 words.
inline void transpose_words(const char* from, int64_t stride, Words* v) {
#pragma GCC unroll 8
  for (int half = 0; half < 2; ++half, from += 16, v += 4) {
    Words r[4];
#pragma GCC unroll 8
    for (int i = 0; i < 4; ++i) r[i] = joined(load_16(from + i * stride), load_16(from + (i + 4) * stride));
    const Words a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    const Words c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    v[0] = _mm256_unpacklo_epi64(a, c), v[1] = _mm256_unpackhi_epi64(a, c);
    v[2] = _mm256_unpacklo_epi64(b, d), v[3] = _mm256_unpackhi_epi64(b, d);
  }
}

// 8 lanes of 8 halfwords, each of which From::widened makes a word: they are widened last, when they are transposed.
template <class From>
inline void transpose_halfwords(const char* from, int64_t stride, Words* v) {
  Words r[4];
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) r[i] = joined(load_16(from + i * stride), load_16(from + (i + 4) * stride));
  const Words a = _mm256_unpacklo_epi16(r[0], r[1]), b = _mm256_unpackhi_epi16(r[0], r[1]);
  const Words c = _mm256_unpacklo_epi16(r[2], r[3]), d = _mm256_unpackhi_epi16(r[2], r[3]);
  const Words pairs[4] = {_mm256_unpacklo_epi32(a, c), _mm256_unpackhi_epi32(a, c), _mm256_unpacklo_epi32(b, d),
                          _mm256_unpackhi_epi32(b, d)};  // of words; lanes 0 to 3 of both, then lanes 4 to 7
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    const Words both = _mm256_permute4x64_epi64(pairs[i], 0xD8);
    v[2 * i] = From::widened(_mm256_castsi256_si128(both));
    v[2 * i + 1] = From::widened(_mm256_extracti128_si256(both, 1));
  }
}

struct Bytes {  // int8 as it is
  static constexpr int kBytes = 1, kElements = 4;
  static inline Words along_k(const void* from) { return load(from); }
  static inline void transposed(const char* from, int64_t stride, Words* v) { transpose_words(from, stride, v); }
  static inline Words along_lanes(const char* const* rows) {
    const __m128i low = _mm_unpacklo_epi8(load_8(rows[0]), load_8(rows[1]));
    const __m128i high = _mm_unpacklo_epi8(load_8(rows[2]), load_8(rows[3]));
    return joined(_mm_unpacklo_epi16(low, high), _mm_unpackhi_epi16(low, high));
  }
  static inline void along_16_lanes(const char* const* rows, Words* first, Words* last) {
    const __m128i a = load_16(rows[0]), b = load_16(rows[1]), c = load_16(rows[2]), d = load_16(rows[3]);
    const __m128i p = _mm_unpacklo_epi8(a, b), q = _mm_unpacklo_epi8(c, d);
    const __m128i r = _mm_unpackhi_epi8(a, b), s = _mm_unpackhi_epi8(c, d);
    *first = joined(_mm_unpacklo_epi16(p, q), _mm_unpackhi_epi16(p, q));
    *last = joined(_mm_unpacklo_epi16(r, s), _mm_unpackhi_epi16(r, s));
  }
};
struct WidenedBytes {  // int8 to int16
  static constexpr int kBytes = 1, kElements = 2;
  static inline Words widened(__m128i bytes) { return _mm256_cvtepi8_epi16(bytes); }
  static inline Words along_k(const void* from) { return widened(load_16(from)); }
  static inline void transposed(const char* from, int64_t stride, Words* v) {
    transpose_halfwords<WidenedBytes>(from, stride, v);
  }
  static inline Words along_lanes(const char* const* rows) {
    return widened(_mm_unpacklo_epi8(load_8(rows[0]), load_8(rows[1])));
  }
};
template <int64_t kDtype>
struct Decoded {  // int8 and float8 to bfloat16
  static constexpr int kBytes = 1, kElements = 2;
  static inline Words widened(__m128i bytes) {
    const Words low = _mm256_srli_epi32(bits(of_bytes<kDtype>(bytes)), 16);
    const Words high = _mm256_srli_epi32(bits(of_bytes<kDtype>(_mm_unpackhi_epi64(bytes, bytes))), 16);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
  }
  static inline Words along_k(const void* from) { return widened(load_16(from)); }
  static inline void transposed(const char* from, int64_t stride, Words* v) {
    transpose_halfwords<Decoded>(from, stride, v);
  }
  static inline Words along_lanes(const char* const* rows) {
    return widened(_mm_unpacklo_epi8(load_8(rows[0]), load_8(rows[1])));
  }
};
struct Halves {  // 16-bit floats as they are
  static constexpr int kBytes = 2, kElements = 2;
  static inline Words along_k(const void* from) { return load(from); }
  static inline void transposed(const char* from, int64_t stride, Words* v) { transpose_words(from, stride, v); }
  static inline Words along_lanes(const char* const* rows) {
    const __m128i x = load_16(rows[0]), y = load_16(rows[1]);
    return joined(_mm_unpacklo_epi16(x, y), _mm_unpackhi_epi16(x, y));
  }
};
template <int64_t kDtype>
struct Widened {  // to float32
  static constexpr int kBytes = 2, kElements = 1;
  static inline Words widened(__m128i halves) {
    if constexpr (kDtype == kFloat16) return bits(_mm256_cvtph_ps(halves));
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
  }
  static inline Words along_k(const void* from) { return widened(load_16(from)); }
  static inline void transposed(const char* from, int64_t stride, Words* v) {
    transpose_halfwords<Widened>(from, stride, v);
  }
  static inline Words along_lanes(const char* const* rows) { return along_k(rows[0]); }
};
template <>
struct Widened<kFloat32> {  // words as they are
  static constexpr int kBytes = 4, kElements = 1;
  static inline Words along_k(const void* from) { return load(from); }
  static inline void transposed(const char* from, int64_t stride, Words* v) { transpose_words(from, stride, v); }
  static inline Words along_lanes(const char* const* rows) { return load(rows[0]); }
};

inline void store_last_half(void* to, Words v) { _mm_storeu_si128(static_cast<__m128i*>(to), _mm256_extracti128_si256(v, 1)); }
inline Words spread_bytes(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }
inline Words exclusive_or(Words x, Words y) { return _mm256_xor_si256(x, y); }

// 8 by 8 words.
inline void transpose(Words* v) {
  alignas(32) char memory[8][32];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) store(memory[i], v[i]);
  transpose_words(memory[0], 32, v);
}

template <int64_t kDtype>
struct WidenedByte {  // int8 and float8 to float32
  static constexpr int kBytes = 1, kElements = 1;
  static inline Words along_k(const void* from) { return bits(of_bytes<kDtype>(load_8(from))); }
  static inline void transposed(const char* from, int64_t stride, Words* v) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) v[i] = along_k(from + i * stride);
    transpose(v);
  }
  static inline Words along_lanes(const char* const* rows) { return along_k(rows[0]); }
};

}  // namespace gemmhub
