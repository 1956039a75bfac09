// The epilogue of a tile of float32 sums, which are in the cache, and their rounding to the dtype of the result.
#pragma GCC target("avx2,fma,f16c")
#include <immintrin.h>

#include <cstring>

#include "gemm.h"
#include "unit.h"

namespace {

using namespace gemmhub;

template <int64_t kDtype>
inline __m256 wide(const char* from) {
  if constexpr (kDtype == kFloat16) return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  if constexpr (kDtype == kBfloat16)
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))), 16));
  return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
}

// Rounded to nearest, ties to even; a NaN stays a NaN.
template <int64_t kDtype>
inline void narrow(__m256 values, char* to) {
  if constexpr (kDtype == kFloat16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
  } else if constexpr (kDtype == kBfloat16) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i nan = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    const __m256i all = _mm256_blendv_epi8(rounded, nan, is_nan);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
  } else {
    _mm256_storeu_ps(reinterpret_cast<float*>(to), values);
  }
}

constexpr int64_t size_of(int64_t dtype) { return dtype == kFloat32 ? 4 : 2; }

template <int64_t kDtype>
inline __m256 addend(const Matrix& c, const char* at, int64_t count) {
  constexpr int64_t kSize = size_of(kDtype);
  if (c.column_stride == kSize && count == 8) return wide<kDtype>(at);
  alignas(32) char edge[32] = {};
  for (int64_t i = 0; i < count; ++i) std::memcpy(edge + i * kSize, at + i * c.column_stride, kSize);
  return wide<kDtype>(edge);
}

template <int64_t kDtype>
void finish_rows(const Call& call, const float* tile, int64_t stride, int64_t row, int64_t rows, int64_t column,
                 int64_t columns) {
  constexpr int64_t kSize = size_of(kDtype);
  const __m256 alpha = _mm256_set1_ps(static_cast<float>(call.alpha)), beta = _mm256_set1_ps(static_cast<float>(call.beta));
  const Matrix& out = call.out;
  const Matrix& c = call.c;
  for (int64_t i = 0; i < rows; ++i) {
    char* to = reinterpret_cast<char*>(out.data) + (row + i) * out.row_stride + column * out.column_stride;
    const char* from = reinterpret_cast<const char*>(c.data) + (row + i) * c.row_stride + column * c.column_stride;
    const char* bias = reinterpret_cast<const char*>(call.bias) + (row + i) * call.bias_row_stride;
    for (int64_t j = 0; j < columns; j += 8) {
      const int64_t count = columns - j < 8 ? columns - j : 8;
      __m256 sum = _mm256_loadu_ps(tile + i * stride + j);  // the tile has room for whole vectors
      if (call.alpha == 0)
        sum = _mm256_setzero_ps();  // not 0 * sum: NaN must not come through
      else if (call.alpha != 1)
        sum = _mm256_mul_ps(sum, alpha);
      if (c.data) {
        const char* at = from + j * c.column_stride;
        __m256 more = c.dtype == kFloat16    ? addend<kFloat16>(c, at, count)
                      : c.dtype == kBfloat16 ? addend<kBfloat16>(c, at, count)
                                             : addend<kFloat32>(c, at, count);
        if (call.beta != 1) more = _mm256_mul_ps(more, beta);
        sum = _mm256_add_ps(sum, more);
      }
      if (call.bias) {
        alignas(32) float values[8] = {};
        for (int64_t x = 0; x < count; ++x) std::memcpy(values + x, bias + (column + j + x) * call.bias_column_stride, 4);
        sum = _mm256_add_ps(sum, _mm256_load_ps(values));
      }
      if (call.relu) sum = _mm256_max_ps(_mm256_setzero_ps(), sum);  // in this order a NaN comes through
      if (out.column_stride == kSize && count == 8) {
        narrow<kDtype>(sum, to + j * kSize);
      } else {
        alignas(32) char edge[32];
        narrow<kDtype>(sum, edge);
        for (int64_t x = 0; x < count; ++x) std::memcpy(to + (j + x) * out.column_stride, edge + x * kSize, kSize);
      }
    }
  }
}

}  // namespace

void gemmhub::finish(const Call& call, const float* tile, int64_t stride, int64_t row, int64_t rows, int64_t column,
                     int64_t columns) {
  if (call.out.dtype == kFloat16) return finish_rows<kFloat16>(call, tile, stride, row, rows, column, columns);
  if (call.out.dtype == kBfloat16) return finish_rows<kBfloat16>(call, tile, stride, row, rows, column, columns);
  finish_rows<kFloat32>(call, tile, stride, row, rows, column, columns);  // int32 has no epilogue: a copy of its bits
}
