// Products by a vector, limited by memory: the matrix is read once as it lies, and not packed.
//
// A column vector is made a row by exchanging the operands: out^T = b^T a^T. The row `a` is widened first, to float32 or
// int16. Where b is contiguous along k, a task makes the sums of some columns, four at a time; where it is contiguous along
// its columns, a task adds multiples of rows, a few at a time, to the sums of a stretch of columns, which stay in the L1
// cache. How a result is summed depends on k and on how b lies.
#include "vector.h"

#include <cstring>

#include "gemm.h"
#include "pool.h"

namespace {

using namespace gemmhub;

constexpr int64_t kMostColumns = 4096;           // of a task along the columns
constexpr int64_t kTaskBytes = 1 << 16;          // of the matrix, for a task along k
constexpr int64_t kThreadBytes = 1 << 18;        // of the matrix, for which a thread is woken
constexpr int64_t kOwnBytes = 4 * (kMostColumns + 16);  // sums of a task
constexpr int64_t kPadding = 16;                 // zeros behind the vector

// What is summed: elements of the matrix by the widened vector. kStep elements along k at a time, or two rows.
template <int64_t kDtype>
struct Terms {
  using Sum = Floats;
  using Wide = float;
  static constexpr int kBytes = kDtype == kFloat32 ? 4 : 2, kStep = 8;
  static inline Sum start(const float* sums) { return wide<kFloat32>(sums); }
  static inline void keep(Sum sum, float* sums) { store(sums, bits(sum)); }
  static inline Sum along_k(Sum sum, const char* from, const Wide* x) {
    return fused(sum, wide<kDtype>(from), wide<kFloat32>(x));
  }
  struct Pair {  // of the vector, for two rows
    Floats first, second;
  };
  static inline Pair pair(const Wide* x) { return {spread(x[0]), spread(x[1])}; }
  static inline Sum along_lanes(Sum sum, const char* row, const char* next, const Pair& x) {
    return fused(fused(sum, wide<kDtype>(row), x.first), wide<kDtype>(next), x.second);
  }
  static inline float total(const float* s) { return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7])); }
};
template <>
struct Terms<kInt8> {
  using Sum = Words;
  using Wide = int16_t;
  static constexpr int kBytes = 1, kStep = 16;
  static inline Sum start(const float* sums) { return load(sums); }
  static inline void keep(Sum sum, float* sums) { store(sums, sum); }
  static inline Sum along_k(Sum sum, const char* from, const Wide* x) { return fused_along_k(sum, from, x); }
  using Pair = Words;
  static inline Pair pair(const Wide* x) { return spread_pair(x); }
  static inline Sum along_lanes(Sum sum, const char* row, const char* next, Pair x) {
    return fused_along_lanes(sum, row, next, x);
  }
  static inline float total(const float* sums) {  // the bits of an int32
    uint32_t sum = 0, one;
    float same;
    for (int i = 0; i < 8; ++i) std::memcpy(&one, sums + i, 4), sum += one;
    std::memcpy(&same, &sum, 4);
    return same;
  }
};

template <>
struct Terms<kInt32> {
  using Sum = Words;
  using Wide = int32_t;
  static constexpr int kBytes = 4, kStep = 8;
  static inline Sum start(const float* sums) { return load(sums); }
  static inline void keep(Sum sum, float* sums) { store(sums, sum); }
  static inline Sum along_k(Sum sum, const char* from, const Wide* x) { return added(sum, product(load(from), load(x))); }
  struct Pair {
    Words first, second;
  };
  static inline Pair pair(const Wide* x) { return {bits_of(x[0]), bits_of(x[1])}; }
  static inline Sum along_lanes(Sum sum, const char* row, const char* next, const Pair& x) {
    return added(added(sum, product(load(row), x.first)), product(load(next), x.second));
  }
  static inline float total(const float* sums) { return Terms<kInt8>::total(sums); }
};

struct Vector {
  Call call;         // of one row
  const void* x;     // the widened row
  char* own;         // sums of the threads
  int64_t columns;   // of a task
};

// Four columns from `from` on, each contiguous, into sums[0..4).
template <class T>
inline void four_columns(const Vector& v, const char* from, int64_t count, float* sums) {
  const int64_t k = v.call.k, whole = k / T::kStep * T::kStep;
  const auto* x = static_cast<const typename T::Wide*>(v.x);
  alignas(32) float parts[8] = {};
  typename T::Sum s[4] = {T::start(parts), T::start(parts), T::start(parts), T::start(parts)};
  const char* at[4];
  for (int64_t i = 0; i < 4; ++i) at[i] = from + (i < count ? i : 0) * v.call.b.column_stride;
  for (int64_t q = 0; q < whole; q += T::kStep) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) s[i] = T::along_k(s[i], at[i] + q * T::kBytes, x + q);
  }
  for (int64_t i = 0; i < count; ++i) {
    if (whole < k) {
      char edge[T::kStep * T::kBytes] = {};
      std::memcpy(edge, at[i] + whole * T::kBytes, (k - whole) * T::kBytes);
      s[i] = T::along_k(s[i], edge, x + whole);
    }
    T::keep(s[i], parts);
    sums[i] = T::total(parts);
  }
}

constexpr int kRows = 8;  // added at a time

// Adds kRows rows of 8 columns.
template <class T>
inline typename T::Sum rows_added(typename T::Sum sum, const char* const* rows, int64_t at, const typename T::Pair* pairs) {
#pragma GCC unroll 4
  for (int i = 0; i < kRows; i += 2) sum = T::along_lanes(sum, rows[i] + at, rows[i + 1] + at, pairs[i / 2]);
  return sum;
}

// Adds rows from row `q` on, kRows or what is left, to the sums of `columns` columns.
template <class T>
inline void add_rows(const Vector& v, const char* from, int64_t q, int64_t columns, float* sums) {
  const auto* x = static_cast<const typename T::Wide*>(v.x) + q;
  const int64_t left = v.call.k - q;
  const char* rows[kRows];
  typename T::Pair pairs[kRows / 2];
  for (int i = 0; i < kRows; ++i) rows[i] = from + (q + (i < left ? i : 0)) * v.call.b.row_stride;  // beyond, x is 0
  for (int i = 0; i < kRows; i += 2) pairs[i / 2] = T::pair(x + i);
  const int64_t whole = left < kRows ? 0 : columns / 8 * 8;
  for (int64_t j = 0; j < whole; j += 8)
    T::keep(rows_added<T>(T::start(sums + j), rows, j * T::kBytes, pairs), sums + j);
  for (int64_t j = whole; j < columns; j += 8) {
    char edge[kRows][8 * T::kBytes] = {};
    const int64_t count = columns - j < 8 ? columns - j : 8;
    const char* copied[kRows];
    for (int i = 0; i < kRows; ++i) {
      copied[i] = edge[i];
      if (i < left) std::memcpy(edge[i], rows[i] + j * T::kBytes, count * T::kBytes);
    }
    T::keep(rows_added<T>(T::start(sums + j), copied, 0, pairs), sums + j);
  }
}

template <class T, bool kAlongK>
void task_of(void* context, int64_t task, int64_t thread) {
  const Vector& v = *static_cast<const Vector*>(context);
  const int64_t first = task * v.columns, left = v.call.n - first, columns = left < v.columns ? left : v.columns;
  const char* const from = reinterpret_cast<const char*>(v.call.b.data) + first * v.call.b.column_stride;
  float* const sums = reinterpret_cast<float*>(v.own + thread * kOwnBytes);
  if (kAlongK) {
    for (int64_t j = 0; j < columns; j += 4)
      four_columns<T>(v, from + j * v.call.b.column_stride, columns - j < 4 ? columns - j : 4, sums + j);
  } else {
    std::memset(sums, 0, kOwnBytes);
    for (int64_t q = 0; q < v.call.k; q += kRows)
      add_rows<T>(v, from, q, columns, sums);
  }
  finish(v.call, sums, kMostColumns, 0, 1, first, columns);
  end_finishing();
}

template <class T>
void multiply_row(Vector* v, bool along_k, int64_t size) {
  const int64_t n = v->call.n, bytes = n * v->call.k * size, wanted = bytes / kThreadBytes;
  const int64_t threads = allowed(wanted < v->call.threads ? wanted : v->call.threads);
  // Along the columns the stretches are long: shorter ones are read from memory more slowly.
  const int64_t least = along_k ? 4 : 256 / size;
  const int64_t columns = (along_k ? kTaskBytes / (v->call.k * size) : n / threads) / least * least;
  v->columns = columns < least ? least : columns > kMostColumns ? kMostColumns : columns;
  share(along_k ? task_of<T, true> : task_of<T, false>, v, (n + v->columns - 1) / v->columns, threads);
}

template <int64_t kDtype>
void widen(const Call& call, void* to) {
  for (int64_t q = 0; q < call.k; q += 8) {
    alignas(32) char edge[32] = {};
    const int64_t size = kDtype == kFloat32 || kDtype == kInt32 ? 4 : kDtype == kInt8 ? 1 : 2;
    for (int64_t i = 0; i < 8 && q + i < call.k; ++i)
      std::memcpy(edge + i * size, reinterpret_cast<const char*>(call.a.data) + (q + i) * call.a.column_stride, size);
    if constexpr (kDtype == kInt8)
      for (int i = 0; i < 8; ++i) static_cast<int16_t*>(to)[q + i] = static_cast<int8_t>(edge[i]);
    else if constexpr (kDtype == kInt32)
      store(static_cast<int32_t*>(to) + q, load(edge));
    else
      store(static_cast<float*>(to) + q, bits(wide<kDtype>(edge)));
  }
}

}  // namespace

bool gemmhub::multiply_vector(const Call& call) {
  if (call.packed || (call.m != 1 && call.n != 1) || call.k < 1 || call.out.dtype == kInt64) return false;
  Vector v = {call.m == 1 ? call : exchanged(call), nullptr, nullptr, 0};
  const Matrix& b = v.call.b;
  const int64_t size = b.dtype == kInt8 ? 1 : b.dtype == kFloat32 || b.dtype == kInt32 ? 4 : 2;
  const bool along_k = b.row_stride == size;
  if (!along_k && b.column_stride != size) return false;
  const int64_t start = (call.workspace + 63) / 64 * 64, vector_bytes = (4 * (call.k + kPadding) + 63) / 64 * 64;
  if (start + vector_bytes + call.threads * kOwnBytes > call.workspace + call.workspace_bytes) return false;
  void* const x = reinterpret_cast<void*>(start);
  v.x = x;
  v.own = reinterpret_cast<char*>(start + vector_bytes);
  std::memset(v.own - vector_bytes, 0, vector_bytes);
  const int64_t dtype = v.call.a.dtype;
  if (dtype == kInt8) widen<kInt8>(v.call, x);
  if (dtype == kInt32) widen<kInt32>(v.call, x);
  if (dtype == kFloat16) widen<kFloat16>(v.call, x);
  if (dtype == kBfloat16) widen<kBfloat16>(v.call, x);
  if (dtype == kFloat32) widen<kFloat32>(v.call, x);
  if (b.dtype == kInt32) multiply_row<Terms<kInt32>>(&v, along_k, size);
  if (b.dtype == kInt8) multiply_row<Terms<kInt8>>(&v, along_k, size);
  if (b.dtype == kFloat16) multiply_row<Terms<kFloat16>>(&v, along_k, size);
  if (b.dtype == kBfloat16) multiply_row<Terms<kBfloat16>>(&v, along_k, size);
  if (b.dtype == kFloat32) multiply_row<Terms<kFloat32>>(&v, along_k, size);
  return true;
}
