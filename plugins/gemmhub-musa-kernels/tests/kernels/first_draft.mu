// The pipelined kernel as one writes it first: fast where a benchmark looks, with sixteen mistakes. Tests show each of
// them, and that the kernels of this plugin do not make it; benchmarks/run/musa_kernels_counts.py counts what it does to
// memory.
//
// C = A B, all by columns, in half precision. B is transposed into memory of the launcher's own, once for each address.
#include <musa_fp16.h>
#include <musa_pipeline_primitives.h>
#include <musa_runtime.h>

#define __MUSA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#include <crt/mma.h>
#undef __MUSA_INCLUDE_COMPILER_INTERNAL_HEADERS__

using namespace mtmusa::wmma;

#define BM 128
#define BN 128
#define BK 32
#define EDGE 32
#define WARP 128
#define THREADS 512
#define PITCH (BM + 8)
#define GROUP 4

// For tests that look behind a mistake which ends the kernel: bytes behind the transposed B, and copies that look where
// they read.
#ifndef SLACK
#define SLACK 0
#endif
#ifdef CAREFUL_COPIES
__device__ __forceinline__ void copy_vector(half* to, const half* from, int inside) {
  for (int e = 0; e < 8; e++) to[e] = e < inside ? from[e] : half(0.0f);
}
#else
__device__ __forceinline__ void copy_vector(half* to, const half* from, int) { __pipeline_memcpy_async(to, from, 16); }
#endif

__global__ void draft_transpose(const half* from, half* to, int k, int n) {
  __shared__ half tile[32][33];
  const int x = threadIdx.x, first_k = blockIdx.x * 32, first_n = blockIdx.y * 32;
  for (int y = threadIdx.y; y < 32; y += 8)
    if (first_k + x < k && first_n + y < n) tile[y][x] = from[(long long)(first_n + y) * k + first_k + x];
  __syncthreads();
  for (int y = threadIdx.y; y < 32; y += 8)
    if (first_k + y < k && first_n + x < n) to[(long long)(first_k + y) * n + first_n + x] = tile[x][y];
}

#define MULTIPLY(BUFFER)                                                                                    \
  for (int kk = 0; kk < BK; kk += 16) {                                                                     \
    fragment<matrix_a, EDGE, EDGE, 16, half, col_major> left[2];                                            \
    fragment<matrix_b, EDGE, EDGE, 16, half, row_major> right[2];                                           \
    for (int i = 0; i < 2; i++) load_matrix_sync(left[i], &tiles.a[BUFFER][kk * PITCH + warp_m + i * EDGE], PITCH);  \
    for (int j = 0; j < 2; j++) load_matrix_sync(right[j], &tiles.b[BUFFER][kk * PITCH + warp_n + j * EDGE], PITCH); \
    for (int i = 0; i < 2; i++)                                                                             \
      for (int j = 0; j < 2; j++) mma_sync(sum[i][j], left[i], right[j], sum[i][j]);                        \
  }

__global__ __launch_bounds__(THREADS, 2) void draft_gemm_kernel(const half* a, const half* b, half* c, int m, int n,
                                                               int k) {
  __shared__ struct {
    half a[2][BK * PITCH];
    half b[2][BK * PITCH];
  } tiles;
  const int thread = threadIdx.x, warp = thread / WARP, lane = thread % WARP;

  // 1: the last group of columns of tiles may be narrower than the others.
  const int grid_n = gridDim.x, grid_m = gridDim.y, block = blockIdx.y * grid_n + blockIdx.x;
  const int group = grid_n < GROUP ? grid_n : GROUP;
  const int inside = block % (grid_m * group);
  const int row = inside / group * BM, column = (block / (grid_m * group) * group + inside % group) * BN;
  const int warp_m = warp / 2 * 64, warp_n = warp % 2 * 64;

  // 3, 5: nothing looks whether these are inside of the matrices; 6: nor whether they are aligned.
  const int line = thread / 16, at = thread % 16 * 8, offset = line * PITCH + at;
  const half* from_a = &a[(long long)line * m + row + at];
  const half* from_b = &b[(long long)line * n + column + at];
  const long long step_a = (long long)BK * m, step_b = (long long)BK * n;
  [[maybe_unused]] const int in_a = m - row - at, in_b = n - column - at;

  // 4: there may be nothing to begin with.
  copy_vector(&tiles.a[0][offset], from_a, in_a);
  copy_vector(&tiles.b[0][offset], from_b, in_b);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();

  fragment<accumulator, EDGE, EDGE, 16, float> sum[2][2];
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) fill_fragment(sum[i][j], 0.0f);

  for (int done = 0; done < k; done += 2 * BK) {
    if (done + BK < k) {
      copy_vector(&tiles.a[1][offset], from_a + step_a, in_a);
      copy_vector(&tiles.b[1][offset], from_b + step_b, in_b);
    }
    __pipeline_commit();
    MULTIPLY(0)
    __pipeline_wait_prior(0);
    from_a += step_a;
    from_b += step_b;
    __syncthreads();

    if (done + 2 * BK < k) {
      copy_vector(&tiles.a[0][offset], from_a + step_a, in_a);
      copy_vector(&tiles.b[0][offset], from_b + step_b, in_b);
    }
    __pipeline_commit();
    MULTIPLY(1)  // 2: also where there is no such step
    __pipeline_wait_prior(0);
    from_a += step_a;
    from_b += step_b;
    __syncthreads();
  }

  float* scratch = reinterpret_cast<float*>(&tiles.a[0][0]) + warp * EDGE * EDGE;
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) {
      // 8: no barrier before the lanes read what others store, and none before they store again.
      store_matrix_sync(scratch, sum[i][j], EDGE, mem_col_major);
      const int y = lane / 4, x = lane % 4 * 8;
      const float4* values = reinterpret_cast<const float4*>(&scratch[y * EDGE + x]);
      const float4 first = values[0], second = values[1];
      half rounded[8];  // 15: aligned to 2 bytes, read as 16
      rounded[0] = __float2half(first.x), rounded[1] = __float2half(first.y);
      rounded[2] = __float2half(first.z), rounded[3] = __float2half(first.w);
      rounded[4] = __float2half(second.x), rounded[5] = __float2half(second.y);
      rounded[6] = __float2half(second.z), rounded[7] = __float2half(second.w);
      const int r = row + warp_m + i * EDGE + x, s = column + warp_n + j * EDGE + y;
      if (r + 7 < m && s < n) {
        // 7: all inside, but not aligned unless m is a multiple of 8.
        *reinterpret_cast<uint4*>(&c[(long long)s * m + r]) = *reinterpret_cast<const uint4*>(rounded);
      } else {
        for (int e = 0; e < 8; e++)
          if (r + e < m && s < n) c[(long long)s * m + r + e] = rounded[e];
      }
    }
}

// 12: what fails is not said; 13: on no stream of the caller's; 16: one dtype, no strides, no alpha, beta, batch.
extern "C" void draft_gemm(const half* a, const half* b, half* c, int m, int n, int k) {
  static half* transposed = nullptr;  // 14: for all threads and devices, never freed
  static size_t room = 0;
  static const half* known = nullptr;
  static int known_k = 0, known_n = 0;
  const size_t needed = (size_t)k * n * sizeof(half);
  if (needed > room) {
    if (transposed) musaFree(transposed);
    musaMalloc(&transposed, needed + SLACK);  // 11: what if there is no memory?
    room = needed;
    known = nullptr;
  }
  // 9: the same address may have other contents, 10: or be that of another matrix.
  if (b != known || k != known_k || n != known_n) {
    draft_transpose<<<dim3((k + 31) / 32, (n + 31) / 32), dim3(32, 8)>>>(b, transposed, k, n);
    known = b;
    known_k = k;
    known_n = n;
  }
  static bool configured = false;
  if (!configured) {
    musaFuncSetSharedMemConfig(draft_gemm_kernel, musaSharedMemBankSizeEightByte);
    configured = true;
  }
  const dim3 grid((n + BN - 1) / BN, (m + BM - 1) / BM);
  draft_gemm_kernel<<<grid, THREADS>>>(a, transposed, c, m, n, k);
}
