/* mtmusa::wmma on NVIDIA GPUs. 16x16x16 and 8x32x16 are nvcuda's own. 32x32x16 belongs to 128 threads, as on MP22: each
 * of their four warps has one 16x16 quadrant, so that a lane owns 8 accumulators on both machines. CUDA wants addresses
 * that are multiples of 32 bytes, and leading dimensions of 16 bytes. */
#pragma once
#include_next <mma.h>

#include <musa_bf16.h>
#include <musa_fp16.h>

#include <type_traits>

namespace mtmusa {
namespace wmma {

using nvcuda::wmma::accumulator;
using nvcuda::wmma::col_major;
using nvcuda::wmma::layout_t;
using nvcuda::wmma::matrix_a;
using nvcuda::wmma::matrix_b;
using nvcuda::wmma::mem_col_major;
using nvcuda::wmma::mem_row_major;
using nvcuda::wmma::row_major;

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment : nvcuda::wmma::fragment<Use, M, N, K, T, Layout> {};
template <class Use, class T, class Layout>
struct fragment<Use, 32, 32, 16, T, Layout> : nvcuda::wmma::fragment<Use, 16, 16, 16, T, Layout> {};

namespace detail {

__device__ __forceinline__ int thread() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
/* The quadrant of this warp in its group of four. */
__device__ __forceinline__ int quadrant_row() { return (thread() & 127) / 64 * 16; }
__device__ __forceinline__ int quadrant_column() { return (thread() & 63) / 32 * 16; }
/* What a hardware warp of 128 lanes has for nothing. Barrier 0 is __syncthreads'. */
__device__ __forceinline__ void group_barrier() {
  asm volatile("bar.sync %0, 128;" ::"r"(thread() / 128 + 1) : "memory");
}

template <int M, int N, class T>
__device__ __forceinline__ T* in_quadrant(T* p, int row, int column, unsigned ld, bool by_rows) {
  if constexpr (M == 32 && N == 32) p += by_rows ? row * ld + column : column * ld + row;
  return p;
}

}  // namespace detail

template <class Use, int M, int N, int K, class T, class Layout, class V>
__device__ __forceinline__ void fill_fragment(fragment<Use, M, N, K, T, Layout>& f, V value) {
  for (auto& element : f.x) element = value;
}

template <int M, int N, int K, class T, class Layout>
__device__ __forceinline__ void load_matrix_sync(fragment<matrix_a, M, N, K, T, Layout>& f, const T* p, unsigned ld) {
  const bool by_rows = std::is_same<Layout, row_major>::value;
  nvcuda::wmma::load_matrix_sync(f, detail::in_quadrant<M, N>(p, detail::quadrant_row(), 0, ld, by_rows), ld);
}

template <int M, int N, int K, class T, class Layout>
__device__ __forceinline__ void load_matrix_sync(fragment<matrix_b, M, N, K, T, Layout>& f, const T* p, unsigned ld) {
  const bool by_rows = std::is_same<Layout, row_major>::value;
  nvcuda::wmma::load_matrix_sync(f, detail::in_quadrant<M, N>(p, 0, detail::quadrant_column(), ld, by_rows), ld);
}

template <int M, int N, int K, class T>
__device__ __forceinline__ void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const T* p, unsigned ld,
                                                 layout_t layout) {
  const int row = detail::quadrant_row(), column = detail::quadrant_column();
  const T* own = detail::in_quadrant<M, N>(p, row, column, ld, layout == mem_row_major);
  nvcuda::wmma::load_matrix_sync(f, own, ld, layout);
}

/* As in the simulator, nothing orders what follows a store, unless MUSA_SIM_LOCKSTEP is defined. */
template <int M, int N, int K, class T>
__device__ __forceinline__ void store_matrix_sync(T* p, const fragment<accumulator, M, N, K, T>& f, unsigned ld,
                                                  layout_t layout) {
  constexpr bool wide = M == 32 && N == 32;
  const int row = detail::quadrant_row(), column = detail::quadrant_column();
  if constexpr (wide) detail::group_barrier();
  T* own = detail::in_quadrant<M, N>(p, row, column, ld, layout == mem_row_major);
  nvcuda::wmma::store_matrix_sync(own, f, ld, layout);
#ifdef MUSA_SIM_LOCKSTEP
  if constexpr (wide) detail::group_barrier();
#endif
}

template <int M, int N, int K, class T, class LayoutA, class LayoutB, class D, class C>
__device__ __forceinline__ void mma_sync(fragment<accumulator, M, N, K, D>& d,
                                         const fragment<matrix_a, M, N, K, T, LayoutA>& a,
                                         const fragment<matrix_b, M, N, K, T, LayoutB>& b,
                                         const fragment<accumulator, M, N, K, C>& c) {
  nvcuda::wmma::mma_sync(d, a, b, c);
}

}  // namespace wmma
}  // namespace mtmusa
