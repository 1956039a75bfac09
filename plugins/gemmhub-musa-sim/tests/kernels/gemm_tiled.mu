// C = A B by tiles in shared memory: row-major, A m x k, B k x n, C m x n in float. Right for all sizes.
#include <musa_bf16.h>
#include <musa_fp16.h>
#include <musa_runtime.h>

constexpr int kTile = 16;

template <class T>
__global__ void gemm_tiled(const T* a, const T* b, float* c, int m, int n, int k) {
  __shared__ T a_tile[kTile][kTile + 1];
  __shared__ T b_tile[kTile][kTile + 1];
  const int x = threadIdx.x, y = threadIdx.y;
  const int row = blockIdx.y * kTile + y, column = blockIdx.x * kTile + x;
  float sum = 0.0f;
  for (int start = 0; start < k; start += kTile) {
    a_tile[y][x] = row < m && start + x < k ? a[(size_t)row * k + start + x] : T(0.0f);
    b_tile[y][x] = start + y < k && column < n ? b[(size_t)(start + y) * n + column] : T(0.0f);
    __syncthreads();
    for (int p = 0; p < kTile; p++) sum += float(a_tile[y][p]) * float(b_tile[p][x]);
    __syncthreads();
  }
  if (row < m && column < n) c[(size_t)row * n + column] = sum;
}

template <class T>
static int launch(const T* a, const T* b, float* c, int m, int n, int k, musaStream_t stream) {
  if (m == 0 || n == 0) return 0;
  const dim3 grid((n + kTile - 1) / kTile, (m + kTile - 1) / kTile);
  gemm_tiled<T><<<grid, dim3(kTile, kTile), 0, stream>>>(a, b, c, m, n, k);
  return musaGetLastError();
}

extern "C" int gemm_tiled_f32(const float* a, const float* b, float* c, int m, int n, int k, musaStream_t s) {
  return launch(a, b, c, m, n, k, s);
}
extern "C" int gemm_tiled_f16(const half* a, const half* b, float* c, int m, int n, int k, musaStream_t s) {
  return launch(a, b, c, m, n, k, s);
}
extern "C" int gemm_tiled_bf16(const __mt_bfloat16* a, const __mt_bfloat16* b, float* c, int m, int n, int k,
                               musaStream_t s) {
  return launch(a, b, c, m, n, k, s);
}
