// Blocks of 8 lanes by 8 words are loaded along the dimension that is dense in memory, converted, and transposed where the
// packed form is dense along the other one. What is dense along neither, and what is left at the edges, goes through a
// small buffer.
#pragma GCC target("avx2,fma,f16c")
#include "pack.h"

#include <immintrin.h>

#include <cstring>

namespace {

using namespace gemmhub;

inline __m256i load32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline __m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline __m128i load8(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
inline __m256i joined(__m128i low, __m128i high) { return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1); }

// One conversion: kBytes of an element, kElements of a word, 8 words of elements that are dense along k, and 8 words of
// kElements rows that are dense along the lanes.
struct Bytes {
  static constexpr int kBytes = 1, kElements = 4;
  static inline __m256i along_k(const void* p) { return load32(p); }
  static inline __m256i along_lanes(const void* const* p) {
    const __m128i low = _mm_unpacklo_epi8(load8(p[0]), load8(p[1])), high = _mm_unpacklo_epi8(load8(p[2]), load8(p[3]));
    return joined(_mm_unpacklo_epi16(low, high), _mm_unpackhi_epi16(low, high));
  }
};
struct WidenedBytes {
  static constexpr int kBytes = 1, kElements = 2;
  static inline __m256i along_k(const void* p) { return _mm256_cvtepi8_epi16(load16(p)); }
  static inline __m256i along_lanes(const void* const* p) {
    return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(load8(p[0]), load8(p[1])));
  }
};
struct Halves {  // bfloat16 as it is
  static constexpr int kBytes = 2, kElements = 2;
  static inline __m256i along_k(const void* p) { return load32(p); }
  static inline __m256i along_lanes(const void* const* p) {
    const __m128i x = load16(p[0]), y = load16(p[1]);
    return joined(_mm_unpacklo_epi16(x, y), _mm_unpackhi_epi16(x, y));
  }
};
struct FromFloat16 {
  static constexpr int kBytes = 2, kElements = 1;
  static inline __m256i along_k(const void* p) { return _mm256_castps_si256(_mm256_cvtph_ps(load16(p))); }
  static inline __m256i along_lanes(const void* const* p) { return along_k(p[0]); }
};
struct FromBfloat16 {
  static constexpr int kBytes = 2, kElements = 1;
  static inline __m256i along_k(const void* p) { return _mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p)), 16); }
  static inline __m256i along_lanes(const void* const* p) { return along_k(p[0]); }
};
struct Singles {
  static constexpr int kBytes = 4, kElements = 1;
  static inline __m256i along_k(const void* p) { return load32(p); }
  static inline __m256i along_lanes(const void* const* p) { return along_k(p[0]); }
};

inline void transpose(__m256i* v) {
  __m256i s[8], t[8];
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

// 8 lanes by 8 words: v[i] holds the words of lane i where `by_lane`, else word i of the lanes. Returns by_lane.
template <class From>
inline bool load(const Source& source, int64_t lanes, int64_t k, __m256i* v) {
  constexpr int kElements = From::kElements, kBytes = From::kBytes, kDeep = 8 * kElements;
  if (source.lane_stride == kBytes && source.k_stride != kBytes) {
    for (int q = 0; q < 8; ++q) {
      alignas(32) char edge[4][32] = {};
      const void* rows[4];
      for (int i = 0; i < kElements; ++i) {
        const int64_t at = q * kElements + i;
        rows[i] = edge[i];
        if (at >= k) continue;
        const char* from = source.data + at * source.k_stride;
        if (lanes == 8)
          rows[i] = from;
        else
          std::memcpy(edge[i], from, lanes * kBytes);
      }
      v[q] = From::along_lanes(rows);
    }
    return false;
  }
  for (int lane = 0; lane < 8; ++lane) {
    const char* from = source.data + lane * source.lane_stride;
    if (lane >= lanes) {
      v[lane] = _mm256_setzero_si256();
    } else if (source.k_stride == kBytes && k >= kDeep) {
      v[lane] = From::along_k(from);
    } else {
      alignas(32) char edge[32] = {};
      const int64_t count = k < kDeep ? k : kDeep;
      if (source.k_stride == kBytes)
        std::memcpy(edge, from, count * kBytes);
      else
        for (int64_t i = 0; i < count; ++i) std::memcpy(edge + i * kBytes, from + i * source.k_stride, kBytes);
      v[lane] = From::along_k(edge);
    }
  }
  return true;
}

template <class From>
void pack_from(const Panel& panel, const Source& source, int64_t lanes, int64_t k, int64_t words, uint32_t* to) {
  const __m256i mask = _mm256_set1_epi8(panel.plus_128 ? static_cast<char>(0x80) : 0);
  for (int64_t q = 0; q < words; q += 8) {
    const int64_t left = k - q * From::kElements;
    for (int64_t lane = 0; lane < panel.lanes; lane += 8) {
      const int64_t some = lanes - lane < 0 ? 0 : lanes - lane > 8 ? 8 : lanes - lane;
      const Source block = {source.data + q * From::kElements * source.k_stride + lane * source.lane_stride,
                            source.k_stride, source.lane_stride, source.dtype};
      __m256i v[8];
      const bool by_lane = load<From>(block, some, left < 0 ? 0 : left, v);
      if (by_lane != panel.row_blocks) transpose(v);
      const int64_t deep = words - q < 8 ? words - q : 8;
      if (panel.row_blocks) {  // [block of 16 words][lane][16 words]
        uint32_t* at = to + q / 16 * 16 * panel.lanes + lane * 16 + q % 16;
        for (int i = 0; i < 8; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(at + 16 * i), v[i]);
      } else if (panel.lanes >= 8) {
        uint32_t* at = to + q * panel.lanes + lane;
        for (int64_t i = 0; i < deep; ++i)
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(at + i * panel.lanes), _mm256_xor_si256(v[i], mask));
      } else {
        for (int64_t i = 0; i < deep; ++i)
          _mm_storeu_si128(reinterpret_cast<__m128i*>(to + (q + i) * panel.lanes), _mm256_castsi256_si128(v[i]));
      }
    }
  }
}

}  // namespace

void gemmhub::pack(const Panel& panel, const Source& source, int64_t lanes, int64_t k, int64_t words, uint32_t* to) {
  if (panel.word == Word::kInt8x4) return pack_from<Bytes>(panel, source, lanes, k, words, to);
  if (panel.word == Word::kInt16x2) return pack_from<WidenedBytes>(panel, source, lanes, k, words, to);
  if (panel.word == Word::kBfloat16x2) return pack_from<Halves>(panel, source, lanes, k, words, to);
  if (source.dtype == kFloat16) return pack_from<FromFloat16>(panel, source, lanes, k, words, to);
  if (source.dtype == kBfloat16) return pack_from<FromBfloat16>(panel, source, lanes, k, words, to);
  pack_from<Singles>(panel, source, lanes, k, words, to);
}

void gemmhub::start_of_rows(const uint32_t* packed, int64_t words, int32_t* start) {
  const __m256i bytes = _mm256_set1_epi8(1), pairs = _mm256_set1_epi16(1);
  __m256i sum = _mm256_setzero_si256();
  for (int64_t q = 0; q < words; ++q)
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, load32(packed + 8 * q)), pairs));
  sum = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sum, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(start), sum);
}
