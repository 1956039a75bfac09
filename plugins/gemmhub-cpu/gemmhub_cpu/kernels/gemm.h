// A call: what Python passes, word for word (native_engine.py). Strides are in bytes, dtypes those of unit.h.
#pragma once

#include <cstdint>

#include "unit.h"

namespace gemmhub {

// Of the result, as gemmhub.epilogues defines them.
enum Activation : int64_t {
  kNone = 0, kRelu = 1, kGelu = 2, kGeluTanh = 3, kSilu = 4, kTanh = 5, kSigmoid = 6, kReluSquared = 7, kLeakyRelu = 8,
  kHardswish = 9
};

struct Matrix {
  int64_t data, row_stride, column_stride, dtype;
};

// A vector along the rows or the columns of the result: the stride is 0 along the other dimension, along both for one element.
struct Strip {
  int64_t data, row_stride, column_stride;  // of float32; data is 0 without one
};

struct Call {
  int64_t unit, threads, m, n, k;
  Matrix a, b;
  int64_t packed;  // the packed form of b, which is then not read; or 0
  Matrix out, c;   // c.data is 0 without an addend
  Strip bias, scale_a, scale_b;
  int64_t scale_out;  // the address of a float32, or 0
  int64_t activation;
  int64_t pinned;  // whether a row has the same bits for every m
  int64_t symmetric;  // whether the result is: then tiles below the diagonal are multiplied, and mirrored
  int64_t workspace, workspace_bytes;
  double alpha, beta;
};

// Whether sums are int32 and results are not: they are rounded to float32 before the epilogue.
inline bool rounds_integers(const Call& call) {
  const Word word = kUnits[call.unit]->word;
  return (word == Word::kInt8x4 || word == Word::kInt16x2) && call.out.dtype != kInt32;
}

// Whether the results are the sums, rounded to their dtype.
inline bool is_plain(const Call& call) {
  return call.alpha == 1 && !call.c.data && !call.bias.data && !call.scale_a.data && !call.scale_b.data && !call.scale_out &&
         !call.activation && !rounds_integers(call);
}

// The same product with its operands exchanged: out^T = b^T a^T. The scales keep their names, and so the order in which they
// multiply.
inline Call exchanged(const Call& call) {
  const auto turned = [](const Matrix& x) { return Matrix{x.data, x.column_stride, x.row_stride, x.dtype}; };
  const auto strip = [](const Strip& x) { return Strip{x.data, x.column_stride, x.row_stride}; };
  Call other = call;
  other.m = call.n, other.n = call.m;
  other.a = turned(call.b), other.b = turned(call.a), other.out = turned(call.out), other.c = turned(call.c);
  other.bias = strip(call.bias), other.scale_a = strip(call.scale_a), other.scale_b = strip(call.scale_b);
  return other;
}

// Whether the result is written past the caches, whole lines at a time. A symmetric one is read again.
bool streamed(const Call& call);

// out = scale_out * activation(alpha * scale_a * scale_b * sums + beta * c + bias) for `rows` by `columns` results from `row`
// and `column` on.
void finish(const Call& call, const float* sums, int64_t stride, int64_t row, int64_t rows, int64_t column,
            int64_t columns);

// What finish() streamed is seen by other threads after this.
void end_finishing();

// A product of one row or column, where the matrix is contiguous along one of its dimensions: it is read once, and not
// packed. False where the product is not one, or is pinned on a unit that adds in another order than a chain, or the workspace
// is too small.
bool multiply_vector(const Call& call);

// Copies the lower triangle of the result to the upper one.
void mirror(Call* call);

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
