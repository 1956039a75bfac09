// C = A B with 32x32x16 matrix fragments, asynchronous copies and two buffers: row-major, A m x k, B k x n in half or
// bfloat16, C m x n in float. Right for all sizes: what is no whole, aligned vector is copied by element, with zeros.
#include <musa_bf16.h>
#include <musa_fp16.h>
#include <musa_pipeline_primitives.h>
#include <musa_runtime.h>

#define __MUSA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#include <crt/mma.h>
#undef __MUSA_INCLUDE_COMPILER_INTERNAL_HEADERS__

namespace wmma = mtmusa::wmma;

constexpr int kWarp = 128;     // threads of a hardware warp: one fragment
constexpr int kWarps = 2;      // of a block, one below the other
constexpr int kFragment = 32;  // rows and columns
constexpr int kStep = 16;      // depth
constexpr int kBlockM = 64, kBlockN = 64, kBlockK = 32;
constexpr int kVector = 8;     // elements of a 16-byte copy
constexpr int kPad = 8;        // elements behind each row in shared memory, against bank conflicts

// 16 bytes of a matrix of `rows` x `columns` from (row, column) on into shared memory.
template <class T>
__device__ __forceinline__ void stage(T* to, const T* from, int row, int column, int rows, int columns) {
  const T* source = from + (size_t)row * columns + column;
  if (row < rows && column + kVector <= columns && ((size_t)source & 15) == 0) {
    __pipeline_memcpy_async(to, source, 16);
    return;
  }
  for (int i = 0; i < kVector; i++) to[i] = row < rows && column + i < columns ? source[i] : T(0.0f);
}

template <class T>
struct Buffers {
  T a[2][kBlockM][kBlockK + kPad];
  T b[2][kBlockK][kBlockN + kPad];
};

template <class T>
__global__ __launch_bounds__(kWarps* kWarp) void gemm_wmma(const T* a, const T* b, float* c, int m, int n, int k) {
  __shared__ __align__(16) Buffers<T> tiles;
  __shared__ __align__(16) float scratch[kWarps][kFragment * kFragment];
  const int thread = threadIdx.x, warp = thread / kWarp, lane = thread % kWarp;
  const int row = blockIdx.y * kBlockM, column = blockIdx.x * kBlockN;
  const int a_row = thread / 4, a_column = thread % 4 * kVector;
  const int b_row = thread / 8, b_column = thread % 8 * kVector;
  const int steps = (k + kBlockK - 1) / kBlockK;

  auto load = [&](int step) {
    const int at = step * kBlockK, buffer = step & 1;
    stage(&tiles.a[buffer][a_row][a_column], a, row + a_row, at + a_column, m, k);
    stage(&tiles.b[buffer][b_row][b_column], b, at + b_row, column + b_column, k, n);
  };

  wmma::fragment<wmma::accumulator, kFragment, kFragment, kStep, float> sum[2];
  for (auto& one : sum) wmma::fill_fragment(one, 0.0f);

  if (steps > 0) load(0);
  __pipeline_commit();
  for (int step = 0; step < steps; step++) {
    if (step + 1 < steps) load(step + 1);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    for (int p = 0; p < kBlockK; p += kStep) {
      wmma::fragment<wmma::matrix_a, kFragment, kFragment, kStep, T, wmma::row_major> left;
      wmma::load_matrix_sync(left, &tiles.a[step & 1][warp * kFragment][p], kBlockK + kPad);
      for (int j = 0; j < 2; j++) {
        wmma::fragment<wmma::matrix_b, kFragment, kFragment, kStep, T, wmma::row_major> right;
        wmma::load_matrix_sync(right, &tiles.b[step & 1][p][j * kFragment], kBlockN + kPad);
        wmma::mma_sync(sum[j], left, right, sum[j]);
      }
    }
    __syncthreads();
  }

  for (int j = 0; j < 2; j++) {
    wmma::store_matrix_sync(scratch[warp], sum[j], kFragment, wmma::mem_row_major);
    __syncthreads();
    for (int i = lane; i < kFragment * kFragment; i += kWarp) {
      const int c_row = row + warp * kFragment + i / kFragment, c_column = column + j * kFragment + i % kFragment;
      if (c_row < m && c_column < n) c[(size_t)c_row * n + c_column] = scratch[warp][i];
    }
    __syncthreads();
  }
}

template <class T>
static int launch(const T* a, const T* b, float* c, int m, int n, int k, musaStream_t stream) {
  if (m == 0 || n == 0) return 0;
  const dim3 grid((n + kBlockN - 1) / kBlockN, (m + kBlockM - 1) / kBlockM);
  gemm_wmma<T><<<grid, kWarps * kWarp, 0, stream>>>(a, b, c, m, n, k);
  return musaGetLastError();
}

extern "C" int gemm_wmma_f16(const half* a, const half* b, float* c, int m, int n, int k, musaStream_t stream) {
  return launch(a, b, c, m, n, k, stream);
}
extern "C" int gemm_wmma_bf16(const __mt_bfloat16* a, const __mt_bfloat16* b, float* c, int m, int n, int k,
                              musaStream_t stream) {
  return launch(a, b, c, m, n, k, stream);
}
