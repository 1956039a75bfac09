/* Matrix fragments (mtmusa::wmma) of the shapes 32x32x16, owned by 128 threads, and 16x16x16 and 8x32x16, by 32.
 *
 * Each lane really holds its share of a matrix and nothing else. Which elements those are is unspecified to programs:
 * there are two layouts to choose from (option LAYOUT), so that code which relies on one fails with the other. */
#ifndef MUSA_SIM_CRT_MMA_H
#define MUSA_SIM_CRT_MMA_H
#ifndef __MUSA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#error "include <mma.h>, or define __MUSA_INCLUDE_COMPILER_INTERNAL_HEADERS__ around <crt/mma.h>"
#endif
#include <type_traits>

#include "../musa_bf16.h"
#include "../musa_fp16.h"
#include "../musa_runtime.h"

namespace mtmusa {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

namespace detail {

template <class Use, int M, int N, int K>
struct Shape;
template <int M, int N, int K>
struct Shape<matrix_a, M, N, K> {
  static constexpr int rows = M, columns = K;
};
template <int M, int N, int K>
struct Shape<matrix_b, M, N, K> {
  static constexpr int rows = K, columns = N;
};
template <int M, int N, int K>
struct Shape<accumulator, M, N, K> {
  static constexpr int rows = M, columns = N;
};

template <int M, int N, int K>
constexpr int lanes() {
  constexpr bool wide = M == 32 && N == 32 && K == 16;
  static_assert(wide || (M == 16 && N == 16 && K == 16) || (M == 8 && N == 32 && K == 16),
                "wmma shapes are 32x32x16, 16x16x16 and 8x32x16");
  static_assert(!wide || warpSize == 128, "wmma 32x32x16 needs warps of 128 threads: mp_22");
  return wide ? 128 : 32;
}

struct Element {
  int row, column;
};

/* Which element of a matrix a lane holds as x[i]. */
template <int Rows, int Columns, int Lanes>
MUSA_SIM_INLINE Element element(int layout, int lane, int i) {
  constexpr int each = Rows * Columns / Lanes;
  if (layout == 0 && Rows == 32 && Columns == 32) /* as published for MP22's accumulators */
    return {(lane >> 3 & 3) + (lane >> 6) * 4 + (i >> 1) * 8, (lane & 7) + (lane >> 5 & 1) * 8 + (i & 1) * 16};
  const int linear = layout == 0 ? lane * each + i : i * Lanes + (lane ^ 5);
  return {linear % Rows, linear / Rows};
}

template <class T>
MUSA_SIM_INLINE void check_address(const T* p, unsigned ld) {
  if (reinterpret_cast<size_t>(p) % 16 || ld * sizeof(T) % 16)
    musaSimFault(musaErrorMisalignedAddress, "wmma: the pointer or leading dimension is no multiple of 16 bytes");
}

/* What a load or store touches, for the checker and the counters; nothing in kernels without their hooks. */
template <class F, class T>
MUSA_SIM_INLINE void note_tile(const T* p, unsigned ld, bool by_rows, int write, const void* pc) {
#if MUSA_SIM_INSTRUMENTED
  constexpr int rows = F::shape::rows, columns = F::shape::columns;
  const size_t run = sizeof(T) * size_t(by_rows ? columns : rows), count = size_t(by_rows ? rows : columns);
  musaSimTile(p, run, count, ld * sizeof(T), F::lanes, write, pc);
#else
  (void)p, (void)ld, (void)by_rows, (void)write, (void)pc;
#endif
}

template <class T>
MUSA_SIM_INLINE void note_element(const T* p, int write, const void* pc) {
#if MUSA_SIM_INSTRUMENTED
  musaSimAccess(p, sizeof(T), write | MUSA_SIM_UNCOUNTED, pc);
#else
  (void)p, (void)write, (void)pc;
#endif
}

template <class F, class T>
MUSA_SIM_INLINE void load(F& fragment, const T* p, unsigned ld, bool by_rows, const void* pc) {
  check_address(p, ld);
  note_tile<F>(p, ld, by_rows, 0, pc);
  const int layout = musaSimFragmentLayout(), lane = int(musaSimLane(F::lanes));
  for (int i = 0; i < F::num_elements; i++) {
    const Element e = element<F::shape::rows, F::shape::columns, F::lanes>(layout, lane, i);
    const T* from = p + (by_rows ? size_t(e.row) * ld + size_t(e.column) : size_t(e.column) * ld + size_t(e.row));
    note_element(from, 0, pc);
    fragment.x[i] = *from;
  }
}

}  // namespace detail

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  using shape = detail::Shape<Use, M, N, K>;
  using element_type = T;
  static constexpr unsigned lanes = unsigned(detail::lanes<M, N, K>());
  static constexpr int num_elements = shape::rows * shape::columns / int(lanes);
  T x[num_elements];
};

template <class Use, int M, int N, int K, class T, class Layout, class V>
MUSA_SIM_INLINE void fill_fragment(fragment<Use, M, N, K, T, Layout>& f, V value) {
  for (T& element : f.x) element = T(value);
}

template <class Use, int M, int N, int K, class T, class Layout>
MUSA_SIM_UNHOOKED void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& f, const T* p, unsigned ld) {
  static_assert(!std::is_same<Use, accumulator>::value, "an accumulator is loaded with a layout as fourth argument");
  detail::load(f, p, ld, std::is_same<Layout, row_major>::value, __builtin_return_address(0));
}

template <int M, int N, int K, class T>
MUSA_SIM_UNHOOKED void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const T* p, unsigned ld,
                                        layout_t layout) {
  detail::load(f, p, ld, layout == mem_row_major, __builtin_return_address(0));
}

/* Waits for all lanes, then stores. Nothing orders what follows: a lane that reads what another stored needs a
 * barrier first (unless the option LOCKSTEP is on). */
template <int M, int N, int K, class T>
MUSA_SIM_UNHOOKED void store_matrix_sync(T* p, const fragment<accumulator, M, N, K, T>& f, unsigned ld,
                                         layout_t layout) {
  using F = fragment<accumulator, M, N, K, T>;
  const void* pc = __builtin_return_address(0);
  const bool by_rows = layout == mem_row_major;
  detail::check_address(p, ld);
  musaSimJoin(F::lanes, "store_matrix_sync", p, long(ld));
  musaSimMeet(F::lanes);
  detail::note_tile<F>(p, ld, by_rows, 1, pc);
  const int fragment_layout = musaSimFragmentLayout(), lane = int(musaSimLane(F::lanes));
  for (int i = 0; i < F::num_elements; i++) {
    const detail::Element e = detail::element<M, N, int(F::lanes)>(fragment_layout, lane, i);
    T* to = p + (by_rows ? size_t(e.row) * ld + size_t(e.column) : size_t(e.column) * ld + size_t(e.row));
    detail::note_element(to, 1, pc);
    *to = f.x[i];
  }
  musaSimLockstep(F::lanes);
}

/* d = a b + c: products and their sum in float, then added to c once. */
template <int M, int N, int K, class T, class LayoutA, class LayoutB, class D, class C>
MUSA_SIM_UNHOOKED void mma_sync(fragment<accumulator, M, N, K, D>& d, const fragment<matrix_a, M, N, K, T, LayoutA>& a,
                                const fragment<matrix_b, M, N, K, T, LayoutB>& b,
                                const fragment<accumulator, M, N, K, C>& c) {
  static_assert(std::is_same<T, __half>::value || std::is_same<T, __mt_bfloat16>::value,
                "wmma multiplies half and bfloat16");
  constexpr int lanes = detail::lanes<M, N, K>();
  MusaSimExchange* area = musaSimJoin(unsigned(lanes), "mma_sync", nullptr, M);
  const int layout = musaSimFragmentLayout(), lane = int(musaSimLane(unsigned(lanes)));
  for (int i = 0; i < a.num_elements; i++) {
    const detail::Element e = detail::element<M, K, lanes>(layout, lane, i);
    area->a[e.row * K + e.column] = float(a.x[i]);
  }
  for (int i = 0; i < b.num_elements; i++) {
    const detail::Element e = detail::element<K, N, lanes>(layout, lane, i);
    area->b[e.row * N + e.column] = float(b.x[i]);
  }
  musaSimMeet(unsigned(lanes));
  musaSimMultiply(area, M, N, K);
  for (int i = 0; i < d.num_elements; i++) {
    const detail::Element e = detail::element<M, N, lanes>(layout, lane, i);
    d.x[i] = D(float(c.x[i]) + area->c[e.row * N + e.column]);
  }
}

}  // namespace wmma
}  // namespace mtmusa

#endif
