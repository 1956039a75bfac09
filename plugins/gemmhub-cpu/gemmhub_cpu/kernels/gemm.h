// A call: what Python passes, word for word (native_engine.py). Strides are in bytes, dtypes those of unit.h.
#pragma once

#include <cstdint>

#include "unit.h"

namespace gemmhub {

// Of the result, as gemmhub.epilogues defines them.
enum Activation : int64_t { kNone = 0, kRelu = 1, kGelu = 2, kGeluTanh = 3, kSilu = 4 };

struct Matrix {
  int64_t data, row_stride, column_stride, dtype;
};

struct Call {
  int64_t unit, threads, m, n, k;
  Matrix a, b;
  int64_t packed;  // the packed form of b, which is then not read; or 0
  Matrix out, c;   // c.data is 0 without an addend
  int64_t bias, bias_row_stride, bias_column_stride;  // float32, or 0
  int64_t activation;
  int64_t pinned;  // whether a row has the same bits for every m
  int64_t workspace, workspace_bytes;
  double alpha, beta;
};

// The same product with its operands exchanged: out^T = b^T a^T.
inline Call exchanged(const Call& call) {
  const auto turned = [](const Matrix& x) { return Matrix{x.data, x.column_stride, x.row_stride, x.dtype}; };
  Call other = call;
  other.m = call.n, other.n = call.m;
  other.a = turned(call.b), other.b = turned(call.a), other.out = turned(call.out), other.c = turned(call.c);
  other.bias_row_stride = call.bias_column_stride, other.bias_column_stride = call.bias_row_stride;
  return other;
}

// Whether the result is written past the caches, whole lines at a time.
bool streamed(const Call& call);

// out = activation(alpha * sums + beta * c + bias) for `rows` by `columns` results from `row` and `column` on.
void finish(const Call& call, const float* sums, int64_t stride, int64_t row, int64_t rows, int64_t column,
            int64_t columns);

// What finish() streamed is seen by other threads after this.
void end_finishing();

// A product of one row or column, where the matrix is contiguous along one of its dimensions: it is read once, and not
// packed. False where the product is not one, or is pinned on a unit that adds in another order than a chain, or the workspace
// is too small.
bool multiply_vector(const Call& call);

// A product of few rows by a b that is contiguous along k, which is read once, and not packed. False where the unit has no
// micro-kernel for it, or the product is not one.
bool multiply_few_rows(const Call& call);

}  // namespace gemmhub

// The functions of gemm.cpp, which has their comments.
extern "C" {
int64_t gemmhub_cpu_workspace(const gemmhub::Call* call);
int64_t gemmhub_cpu_multiply(const gemmhub::Call* call);
int64_t gemmhub_cpu_packed_bytes(const gemmhub::Call* call);
void gemmhub_cpu_pack(const gemmhub::Call* call);
}
