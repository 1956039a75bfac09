// A copy of a matrix of 16-bit elements, with dense, aligned rows: of B as pack() keeps it, or of an operand that the
// product would read badly. Both sides are accessed in whole lines of 128 bytes, in order: what lies by columns is
// turned in shared memory.
#include <musa_runtime.h>

constexpr int kEdge = 64;      // 128 bytes
constexpr int kRowsAtOnce = 8;
constexpr int kPitch = kEdge + 2;  // a column is then spread over all banks

// to[i * ld + j] = from[i * row + j * col], and zeros from j = columns to the end of the row; reading along i (if
// by_columns) or j.
template <bool by_columns>
__global__ __launch_bounds__(kEdge* kRowsAtOnce) void copy_matrix(const unsigned short* from, unsigned short* to,
                                                                  int rows, int columns, long long row, long long col,
                                                                  long long ld) {
  __shared__ unsigned short tile[kEdge * kPitch];
  const int tiles_n = (columns + kEdge - 1) / kEdge;
  const int first_row = int(blockIdx.x / tiles_n) * kEdge, first_column = int(blockIdx.x % tiles_n) * kEdge;
  const int x = int(threadIdx.x);
#pragma unroll
  for (int y = int(threadIdx.y); y < kEdge; y += kRowsAtOnce) {
    const int i = first_row + (by_columns ? x : y), j = first_column + (by_columns ? y : x);
    tile[y * kPitch + x] = i < rows && j < columns ? from[i * row + j * col] : 0;
  }
  __syncthreads();
#pragma unroll
  for (int y = int(threadIdx.y); y < kEdge; y += kRowsAtOnce) {
    const int i = first_row + y, j = first_column + x;
    if (i < rows && j < ld) to[i * ld + j] = by_columns ? tile[x * kPitch + y] : tile[y * kPitch + x];
  }
}

// Returns a musaError_t; `*left` as that of gemmhub_gemm.
extern "C" int gemmhub_copy(const void* from, void* to, int rows, int columns, long long row, long long col,
                            long long ld, musaStream_t stream, int* left) {
  *left = musaGetLastError();
  const long long tiles = ((long long)rows + kEdge - 1) / kEdge * (((long long)columns + kEdge - 1) / kEdge);
  if (rows < 0 || columns < 0 || ld < columns || tiles > 0x7fffffff) return musaErrorInvalidValue;
  if (tiles == 0) return musaSuccess;
  const unsigned short* source = static_cast<const unsigned short*>(from);
  unsigned short* target = static_cast<unsigned short*>(to);
  const dim3 grid(static_cast<unsigned>(tiles)), block(kEdge, kRowsAtOnce);
  if (row == 1)
    copy_matrix<true><<<grid, block, 0, stream>>>(source, target, rows, columns, row, col, ld);
  else
    copy_matrix<false><<<grid, block, 0, stream>>>(source, target, rows, columns, row, col, ld);
  return musaGetLastError();
}
