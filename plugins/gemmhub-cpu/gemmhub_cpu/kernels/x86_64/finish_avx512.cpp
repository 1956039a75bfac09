// The epilogue by AVX-512.
#include "../gemm.h"  // first: its functions are not compiled for AVX-512

#include "vector_512.h"

#include "../finish_rows.h"

namespace gemmhub {

void finish_by_16(const Call& call, const float* sums, int64_t stride, int64_t row, int64_t rows, int64_t column,
                  int64_t columns) {
  finish_by_lanes(call, sums, stride, row, rows, column, columns);
}

}  // namespace gemmhub
