// Step 2: matrix fragments. 32 threads multiply 16x16x16 at a time, a tile of the result for each block.
//
// Tiles of A and B pass through shared memory, where what lies outside of the matrices is 0: so every size, stride and
// address is right. (load_matrix_sync straight from global memory is not: it reads whole tiles from aligned
// addresses.) On mp_22, whose hardware warps have 128 threads, 96 of them idle here; step 3 uses all.
#include "gemm.h"

#include <mma.h>

using namespace gemmhub;
namespace wmma = mtmusa::wmma;

constexpr int kEdge = 16, kLanes = 32;
constexpr int kPitch = kEdge + 8;  // elements from row to row in shared memory: 48 bytes, against bank conflicts

template <class T, class O>
__global__ __launch_bounds__(kLanes) void wmma_gemm(const Gemm p) {
  __shared__ __align__(128) T a_tile[kEdge * kPitch];
  __shared__ __align__(128) T b_tile[kEdge * kPitch];
  __shared__ __align__(128) float scratch[kEdge * kEdge];
  const int tiles_n = (p.n + kEdge - 1) / kEdge;
  const int row = int(blockIdx.x / tiles_n) * kEdge, column = int(blockIdx.x % tiles_n) * kEdge;
  const T* a = static_cast<const T*>(p.a) + matrix_at(p, p.batch_a);
  const T* b = static_cast<const T*>(p.b) + matrix_at(p, p.batch_b);

  wmma::fragment<wmma::accumulator, kEdge, kEdge, kEdge, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int k = 0; k < p.k; k += kEdge) {
    for (int i = int(threadIdx.x); i < kEdge * kEdge; i += kLanes) {
      const int y = i / kEdge, x = i % kEdge;
      const bool in_a = row + y < p.m && k + x < p.k, in_b = k + y < p.k && column + x < p.n;
      a_tile[y * kPitch + x] = in_a ? a[(row + y) * p.a_row + (k + x) * p.a_col] : from_float<T>(0.0f);
      b_tile[y * kPitch + x] = in_b ? b[(k + y) * p.b_row + (column + x) * p.b_col] : from_float<T>(0.0f);
    }
    __syncthreads();
    wmma::fragment<wmma::matrix_a, kEdge, kEdge, kEdge, T, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, kEdge, kEdge, kEdge, T, wmma::row_major> right;
    wmma::load_matrix_sync(left, a_tile, kPitch);
    wmma::load_matrix_sync(right, b_tile, kPitch);
    wmma::mma_sync(sum, left, right, sum);
    __syncthreads();
  }

  // Nothing promises that a lane sees what the others have stored: there must be a barrier.
  wmma::store_matrix_sync(scratch, sum, kEdge, wmma::mem_row_major);
  __syncthreads();
  const long long c_at = matrix_at(p, p.batch_c), d_at = matrix_at(p, p.batch_d);
  for (int i = int(threadIdx.x); i < kEdge * kEdge; i += kLanes)
    finish<O>(p, c_at, d_at, scratch[i], row + i / kEdge, column + i % kEdge);
}

extern "C" int gemmhub_gemm(const Gemm* gemm, musaStream_t stream, int* left) {
  using T = GEMMHUB_OPERAND;
  using O = GEMMHUB_RESULT;
  return launch_tiles<O>(*gemm, kEdge, kEdge, left, [&](const Gemm& p, dim3 grid) {
    wmma_gemm<T, O><<<grid, kLanes, 0, stream>>>(p);
  });
}
