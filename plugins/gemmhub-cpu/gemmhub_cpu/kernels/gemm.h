// A call: what Python passes, word for word (native_engine.py). Strides are in bytes, dtypes those of unit.h.
#pragma once

#include <cstdint>

namespace gemmhub {

struct Matrix {
  int64_t data, row_stride, column_stride, dtype;
};

struct Call {
  int64_t unit, threads, m, n, k;
  Matrix a, b;
  int64_t packed;  // the packed form of b, which is then not read; or 0
  Matrix out, c;   // c.data is 0 without an addend
  int64_t bias, bias_row_stride, bias_column_stride;  // float32, or 0
  int64_t relu;
  int64_t workspace, workspace_bytes;
  double alpha, beta;
};

// out = relu(alpha * tile + beta * c + bias) for `rows` by `columns` results from `row` and `column` on.
void finish(const Call& call, const float* tile, int64_t stride, int64_t row, int64_t rows, int64_t column,
            int64_t columns);

// A product of one row or column, where the matrix is contiguous along one of its dimensions: it is read once, and not
// packed. False where the product is not one, or the workspace is too small.
bool multiply_vector(const Call& call);

}  // namespace gemmhub
