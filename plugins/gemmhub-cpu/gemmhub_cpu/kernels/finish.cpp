// The epilogue, by eight lanes, and by sixteen where the processor has AVX-512.
#include "vector.h"

#include "finish_rows.h"

namespace gemmhub {
void finish_by_16(const Call& call, const float* sums, int64_t stride, int64_t row, int64_t rows, int64_t column,
                  int64_t columns);  // x86_64/finish_avx512.cpp
}

namespace {

// Results of more bytes are streamed. Smaller ones stay in a cache for what reads them: an EPYC with 0.5 MiB of L2 loses a fifth
// by streaming 4 MiB, a Xeon with 2 MiB gains nothing.
constexpr int64_t kStreamedBytes = int64_t{1} << 22;

// Sums of 8 bytes, which have no epilogue.
void copy_rows(const Call& call, const char* sums, int64_t stride, int64_t row, int64_t rows, int64_t column,
               int64_t columns) {
  const Matrix& out = call.out;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      std::memcpy(reinterpret_cast<char*>(out.data) + (row + i) * out.row_stride + (column + j) * out.column_stride,
                  sums + 8 * (i * stride + j), 8);
}

#ifdef __x86_64__
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
#endif

}  // namespace

bool gemmhub::streamed(const Call& call) {
  const Matrix& out = call.out;
  const int64_t size = size_of(out.dtype);
  return !call.symmetric && call.m * call.n * size > kStreamedBytes && out.column_stride == size &&
         out.row_stride % 64 == 0 && out.data % size == 0;
}

void gemmhub::finish(const Call& call, const float* sums, int64_t stride, int64_t row, int64_t rows, int64_t column,
                     int64_t columns) {
  if (call.out.dtype == kInt64 || call.out.dtype == kFloat64)
    return copy_rows(call, reinterpret_cast<const char*>(sums), stride, row, rows, column, columns);
#ifdef __x86_64__
  if (has_avx512()) return finish_by_16(call, sums, stride, row, rows, column, columns);
#endif
  finish_by_lanes(call, sums, stride, row, rows, column, columns);
}

void gemmhub::end_finishing() { end_streaming(); }
