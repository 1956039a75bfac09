// Step 1: a thread for each element of the result. Slow, and right: what the other kernels are compared with.
//
// Row- and column-major operands differ in their strides only, so that one kernel serves for all. Neighbouring threads
// have neighbouring columns: the result is written, and a row-major B read, in whole lines.
#include "gemm.h"

using namespace gemmhub;

constexpr int kColumns = 64, kRows = 4;  // of the result, in a block

template <class T, class O>
__global__ __launch_bounds__(kRows* kColumns) void scalar_gemm(const Gemm p) {
  const int tiles_n = (p.n + kColumns - 1) / kColumns;
  const int row = int(blockIdx.x / tiles_n) * kRows + int(threadIdx.y);
  const int column = int(blockIdx.x % tiles_n) * kColumns + int(threadIdx.x);
  if (row >= p.m || column >= p.n) return;
  const T* a = static_cast<const T*>(p.a) + matrix_at(p, p.batch_a) + row * p.a_row;
  const T* b = static_cast<const T*>(p.b) + matrix_at(p, p.batch_b) + column * p.b_col;
  float sum = 0.0f;
#pragma unroll 4
  for (int k = 0; k < p.k; k++) sum += to_float(a[k * p.a_col]) * to_float(b[k * p.b_row]);
  finish<O>(p, matrix_at(p, p.batch_c), matrix_at(p, p.batch_d), sum, row, column);
}

extern "C" int gemmhub_gemm(const Gemm* gemm, musaStream_t stream, int* left) {
  using T = GEMMHUB_OPERAND;
  using O = GEMMHUB_RESULT;
  return launch_tiles<O>(*gemm, kRows, kColumns, left, [&](const Gemm& p, dim3 grid) {
    scalar_gemm<T, O><<<grid, dim3(kColumns, kRows), 0, stream>>>(p);
  });
}
