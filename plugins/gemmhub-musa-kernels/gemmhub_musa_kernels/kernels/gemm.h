// What every kernel here shares: a product as its launcher gets it, and the way from a sum in float to the result.
//
//     D = activation(alpha A B + beta C + bias),   A m x k, B k x n, C and D m x n
//
// Everything may lie anyhow in memory: element (i, j) of a matrix is at i * row + j * col. What lies well is moved in
// vectors of 16 bytes, the rest element by element.
#pragma once
#include <musa_bf16.h>
#include <musa_fp16.h>
#include <musa_runtime.h>

#include <math.h>

// A hardware warp has 128 threads on mp_21 and mp_22, 32 on mp_31. The host's half of a file must know it as well, so
// that it comes from the command line and not from __MUSA_ARCH__.
#ifndef GEMMHUB_WARP
#error "GEMMHUB_WARP must be 128 (mp_21, mp_22) or 32 (mp_31)"
#endif

namespace gemmhub {

constexpr int kWarp = GEMMHUB_WARP;
constexpr int kVector = 8;  // operands of 16 bits in a vector of 16 bytes
constexpr int kBatchDims = 4;
constexpr int kMostBatches = 32768;  // of one launch: blockIdx.z ends at 65535

enum Type { kFloat16 = 0, kBFloat16 = 1, kFloat32 = 2 };
enum BiasAxis { kNoBias = 0, kBiasPerRow = 1, kBiasPerColumn = 2 };

// parameters.py has the same structure. All strides count elements.
struct Gemm {
  const void* a;
  const void* b;
  const void* c;     // null: there is none, beta counts for nothing
  const void* bias;  // null: there is none
  void* d;
  long long a_row, a_col, b_row, b_col, c_row, c_col, d_row, d_col, bias_step;
  // Batch dimensions, outermost first: their sizes, and how far apart neighbours are.
  long long batch_a[kBatchDims], batch_b[kBatchDims], batch_c[kBatchDims], batch_d[kBatchDims];
  int batch_size[kBatchDims];
  int batch_dims;
  int m, n, k;
  // How far rows of A, and columns of B, may be read: m and n, or more where they are padded (with what is not used).
  int a_readable, b_readable;
  int c_type, bias_type, bias_axis, activation;
  float alpha, beta;
  // Set by prepared() below.
  int first_batch;
  int a_granule, b_granule;  // elements that one access may move: 8, 4, 2 or 1
  int vectors;               // whether rows of the result, and what is added to it, may be moved in vectors of 16 bytes
};

template <class T>
__device__ __forceinline__ float to_float(T x);
template <>
__device__ __forceinline__ float to_float(half x) { return __half2float(x); }
template <>
__device__ __forceinline__ float to_float(__mt_bfloat16 x) { return __bfloat162float(x); }
template <>
__device__ __forceinline__ float to_float(float x) { return x; }

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ half from_float(float x) { return __float2half(x); }
template <>
__device__ __forceinline__ __mt_bfloat16 from_float(float x) { return __float2bfloat16(x); }
template <>
__device__ __forceinline__ float from_float(float x) { return x; }

// ---- where a block works ----

// How far into an operand the matrix of block blockIdx.z begins, in elements. `steps` are those of the operand.
__device__ __forceinline__ long long matrix_at(const Gemm& p, const long long (&steps)[kBatchDims]) {
  long long at = 0;
  int rest = p.first_batch + int(blockIdx.z);
  for (int dim = p.batch_dims - 1; dim >= 0; dim--) {
    at += rest % p.batch_size[dim] * steps[dim];
    rest /= p.batch_size[dim];
  }
  return at;
}

// ---- from a sum to the result ----

// What the expressions of gemmhub/epilogues.py are made of. At minus infinity the formulas are infinity over infinity, or
// infinity times 0. A NaN stays one.
__device__ __forceinline__ float gated(float x, float t) { return x == -INFINITY ? 0.0f : x / (1.0f + expf(-t)); }

__device__ __forceinline__ float normal_weighted(float x) {
  return x == -INFINITY ? 0.0f : 0.5f * x * (1.0f + erff(0.70710678118654752f * x));
}

// sources.py generates its definition, of these expressions. NAN where a number has none.
__device__ __forceinline__ float activated(float x, int activation);

__device__ __forceinline__ float element(const void* base, int type, long long at) {
  if (type == kFloat16) return to_float(static_cast<const half*>(base)[at]);
  if (type == kBFloat16) return to_float(static_cast<const __mt_bfloat16*>(base)[at]);
  return static_cast<const float*>(base)[at];
}

// Multiplications and additions with alpha, beta and the bias are fused explicitly, so that an element has the same bits
// from both functions below, whatever a compiler contracts there.

// One element of the result. c_at and d_at are where its matrix begins in C and D.
template <class O>
__device__ __forceinline__ void finish(const Gemm& p, long long c_at, long long d_at, float sum, int row,
                                       int column) {
  if (row >= p.m || column >= p.n) return;
  float x = fmaf(p.alpha, sum, 0.0f);
  if (p.c) x = fmaf(p.beta, element(p.c, p.c_type, c_at + row * p.c_row + column * p.c_col), x);
  if (p.bias) x += element(p.bias, p.bias_type, (p.bias_axis == kBiasPerRow ? row : column) * p.bias_step);
  static_cast<O*>(p.d)[d_at + row * p.d_row + column * p.d_col] = from_float<O>(activated(x, p.activation));
}

// x[e] = fmaf(factor, from[e], x[e]), in accesses of 16 bytes (of 8, where there are no more).
template <class S, int kCount>
__device__ __forceinline__ void add_packed(float (&x)[kCount], float factor, const S* from) {
  constexpr int each = kCount * sizeof(S) < 16 ? kCount : 16 / int(sizeof(S));
  static_assert(each * sizeof(S) >= 8, "at least 8 bytes");
#pragma unroll
  for (int first = 0; first < kCount; first += each) {
    __align__(16) S values[each];
    if constexpr (sizeof(values) == 16)
      *reinterpret_cast<uint4*>(values) = *reinterpret_cast<const uint4*>(from + first);
    else
      *reinterpret_cast<uint2*>(values) = *reinterpret_cast<const uint2*>(from + first);
#pragma unroll
    for (int e = 0; e < each; e++) x[first + e] = fmaf(factor, to_float(values[e]), x[first + e]);
  }
}

template <int kCount>
__device__ __forceinline__ void add_vector(float (&x)[kCount], float factor, const void* base, int type, long long at) {
  if (type == kFloat16) add_packed(x, factor, static_cast<const half*>(base) + at);
  else if (type == kBFloat16) add_packed(x, factor, static_cast<const __mt_bfloat16*>(base) + at);
  else add_packed(x, factor, static_cast<const float*>(base) + at);
}

// As many columns of one row of the result as fill 16 bytes, from `column` on; those outside are left out. For products
// with `vectors`; `sums` are aligned to 16 bytes.
template <class O>
__device__ __forceinline__ void finish_vector(const Gemm& p, long long c_at, long long d_at, const float* sums,
                                              int row, int column) {
  constexpr int kCount = 16 / int(sizeof(O));
  if (row >= p.m) return;
  if (column + kCount > p.n) {
#pragma unroll 1
    for (int e = 0; e < kCount; e++) finish<O>(p, c_at, d_at, sums[e], row, column + e);
    return;
  }
  float x[kCount];
#pragma unroll
  for (int e = 0; e < kCount; e++) x[e] = 0.0f;
  add_packed(x, p.alpha, sums);
  if (p.c) add_vector(x, p.beta, p.c, p.c_type, c_at + row * p.c_row + column);
  if (p.bias && p.bias_axis == kBiasPerColumn) add_vector(x, 1.0f, p.bias, p.bias_type, column);
  if (p.bias && p.bias_axis == kBiasPerRow) {
    const float of_row = element(p.bias, p.bias_type, row * p.bias_step);
#pragma unroll
    for (int e = 0; e < kCount; e++) x[e] += of_row;
  }
  __align__(16) O rounded[kCount];
#pragma unroll
  for (int e = 0; e < kCount; e++) rounded[e] = from_float<O>(activated(x[e], p.activation));
  O* const to = static_cast<O*>(p.d) + d_at + row * p.d_row + column;
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(rounded);
}

// ---- launching ----

inline bool all_divisible(const Gemm& p, const long long (&steps)[kBatchDims], int by) {
  for (int dim = 0; dim < p.batch_dims; dim++)
    if (steps[dim] % by) return false;
  return true;
}

// The most elements of 16 bits that may be moved at once along the dense dimension of an operand.
inline int granule(const Gemm& p, const void* address, long long row, long long col,
                   const long long (&steps)[kBatchDims]) {
  if (row != 1 && col != 1) return 1;
  const long long line = row == 1 ? col : row;
  for (int elements = kVector; elements > 1; elements /= 2)
    if (size_t(address) % (2 * elements) == 0 && line % elements == 0 && all_divisible(p, steps, elements))
      return elements;
  return 1;
}

inline bool in_vectors(const Gemm& p, const void* address, size_t size, long long row, long long col,
                       const long long (&steps)[kBatchDims]) {
  const int by = int(16 / size);
  return col == 1 && size_t(address) % 16 == 0 && row % by == 0 && all_divisible(p, steps, by);
}

inline size_t size_of(int type) { return type == kFloat32 ? 4 : 2; }

// The product with what its addresses and strides allow. With alpha = 0 the operands count for nothing, NaN or not.
template <class O>
Gemm prepared(const Gemm& given) {
  Gemm p = given;
  if (p.alpha == 0.0f) p.k = 0;
  if (p.beta == 0.0f) p.c = nullptr;
  p.first_batch = 0;
  p.a_granule = granule(p, p.a, p.a_row, p.a_col, p.batch_a);
  p.b_granule = granule(p, p.b, p.b_row, p.b_col, p.batch_b);
  p.vectors = in_vectors(p, p.d, sizeof(O), p.d_row, p.d_col, p.batch_d) &&
              (!p.c || in_vectors(p, p.c, size_of(p.c_type), p.c_row, p.c_col, p.batch_c)) &&
              (!p.bias || p.bias_axis == kBiasPerRow || (p.bias_step == 1 && size_t(p.bias) % 16 == 0));
  return p;
}

// Calls start(product, grid) for a grid of tiles of rows x columns and each part of the batch. Returns a musaError_t;
// `*left` becomes the error that earlier work had left in the runtime (0: none), which is cleared so that it is not
// taken for one of this launch.
template <class O, class Start>
int launch_tiles(const Gemm& given, int rows, int columns, int* left, Start start) {
  *left = musaGetLastError();
  Gemm p = prepared<O>(given);
  if (p.batch_dims < 0 || p.batch_dims > kBatchDims || p.m < 0 || p.n < 0 || p.k < 0) return musaErrorInvalidValue;
  long long batches = 1;
  for (int dim = 0; dim < p.batch_dims; dim++) batches *= p.batch_size[dim];
  const long long tiles = ((long long)p.m + rows - 1) / rows * (((long long)p.n + columns - 1) / columns);
  if (tiles > 0x7fffffff || batches > 0x7fffffff) return musaErrorInvalidValue;
  if (tiles == 0) return musaSuccess;
  for (long long first = 0; first < batches; first += kMostBatches) {
    p.first_batch = int(first);
    start(p, dim3(unsigned(tiles), 1, unsigned(batches - first < kMostBatches ? batches - first : kMostBatches)));
    const int status = musaGetLastError();
    if (status != musaSuccess) return status;
  }
  return musaSuccess;
}

}  // namespace gemmhub
