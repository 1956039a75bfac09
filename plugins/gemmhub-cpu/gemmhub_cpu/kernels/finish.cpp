// The epilogue of a tile of float32 sums, which are in the cache, and their rounding to the dtype of the result.
#include "vector.h"

#include <cstring>

#include "gemm.h"

namespace {

using namespace gemmhub;

constexpr int64_t size_of(int64_t dtype) { return dtype == kFloat32 ? 4 : 2; }

template <int64_t kDtype>
inline Floats addend(const Matrix& c, const char* at, int64_t count) {
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
  const Floats alpha = spread(static_cast<float>(call.alpha)), beta = spread(static_cast<float>(call.beta));
  const Matrix& out = call.out;
  const Matrix& c = call.c;
  for (int64_t i = 0; i < rows; ++i) {
    char* to = reinterpret_cast<char*>(out.data) + (row + i) * out.row_stride + column * out.column_stride;
    const char* from = reinterpret_cast<const char*>(c.data) + (row + i) * c.row_stride + column * c.column_stride;
    const char* bias = reinterpret_cast<const char*>(call.bias) + (row + i) * call.bias_row_stride;
    for (int64_t j = 0; j < columns; j += 8) {
      const int64_t count = columns - j < 8 ? columns - j : 8;
      Floats sum = wide<kFloat32>(tile + i * stride + j);  // the tile has room for whole vectors
      if (call.alpha == 0)
        sum = spread(0);  // not 0 * sum: NaN must not come through
      else if (call.alpha != 1)
        sum = times(sum, alpha);
      if (c.data) {
        const char* at = from + j * c.column_stride;
        Floats more = c.dtype == kFloat16    ? addend<kFloat16>(c, at, count)
                      : c.dtype == kBfloat16 ? addend<kBfloat16>(c, at, count)
                                             : addend<kFloat32>(c, at, count);
        if (call.beta != 1) more = times(more, beta);
        sum = plus(sum, more);
      }
      if (call.bias) {
        alignas(32) float values[8] = {};
        for (int64_t x = 0; x < count; ++x) std::memcpy(values + x, bias + (column + j + x) * call.bias_column_stride, 4);
        sum = plus(sum, wide<kFloat32>(values));
      }
      if (call.relu) sum = positive(sum);
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
