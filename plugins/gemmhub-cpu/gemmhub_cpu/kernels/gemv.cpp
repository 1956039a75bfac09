// Products by a vector, limited by memory: the matrix is read once as it lies, and not packed.
//
// A column vector is made a row by exchanging the operands: out^T = b^T a^T. The row `a` is widened first, to float32 or
// int16. Where b is contiguous along its columns, a task adds multiples of rows, a few at a time, to the sums of a stretch of
// columns, which stay in the L1 cache. Where b is contiguous along k, a task makes the sums of some columns, each in lanes that
// hold every eighth product or more, and are added in the end. Of pinned products, and of float64, it sums 8 columns at a time,
// transposed in registers, which is slower: each sum is one chain of fused multiply-adds along k, as that of the micro-kernels
// for float32 and float64.
#include <cstring>

#include "elements.h"
#include "gemm.h"
#include "pool.h"

namespace {

using namespace gemmhub;

constexpr int64_t kMostBytes = 1 << 14;          // of the sums of a task along the columns
constexpr int64_t kTaskBytes = 1 << 16;          // of the matrix, for a task along k
constexpr int64_t kThreadBytes = 1 << 18;        // of the matrix, for which a thread is woken
constexpr int64_t kOwnBytes = kMostBytes + 128;  // sums of a task
constexpr int64_t kPadding = 16;                 // elements behind the vector that add nothing to a sum, nor change its sign
constexpr int64_t kBlock = 8;                    // elements along k of floats, transposed at a time

// What is summed: elements of the matrix by the widened vector, for 8 columns two rows at a time. For columns that are
// contiguous along k `along_k` adds kStep products of one, and `total` the lanes; of floats `transposed` makes kBlock rows of 8.
template <int64_t kDtype>
struct Terms {
  using Sum = Floats;
  using Wide = float;
  using Total = float;
  static constexpr int kBytes = kDtype == kFloat32 ? 4 : 2, kStep = 8;
  static constexpr bool kExact = false;
  static inline Sum start(const Total* sums) { return wide<kFloat32>(sums); }
  static inline void keep(Sum sum, Total* sums) { store(sums, bits(sum)); }
  static inline Sum along_k(Sum sum, const char* from, const Wide* x) {
    return fused(sum, wide<kDtype>(from), wide<kFloat32>(x));
  }
  static inline Total total(const Total* s) { return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7])); }
  struct Pair {  // of the vector, for two rows
    Floats first, second;
  };
  static inline Pair pair(const Wide* x) { return {spread(x[0]), spread(x[1])}; }
  static inline Sum along_lanes(Sum sum, const char* row, const char* next, const Pair& x) {
    return fused(fused(sum, wide<kDtype>(row), x.first), wide<kDtype>(next), x.second);
  }
  static inline void transposed(const char* from, int64_t stride, Sum* rows) {
    Words words[kBlock];
    Widened<kDtype>::transposed(from, stride, words);
#pragma GCC unroll 8
    for (int i = 0; i < kBlock; ++i) rows[i] = floats(words[i]);
  }
  static inline Sum add(Sum sum, Sum row, Wide x) { return fused(sum, row, spread(x)); }
};

template <>
struct Terms<kFloat64> {
  using Sum = Doubles;
  using Wide = double;
  using Total = double;
  static constexpr int kBytes = 8, kStep = 0;  // in a chain alone
  static constexpr bool kExact = false;
  static inline Sum start(const Total* sums) { return wide_doubles(sums); }
  static inline void keep(Sum sum, Total* sums) { store(sums, sum); }
  struct Pair {
    double first, second;
  };
  static inline Pair pair(const Wide* x) { return {x[0], x[1]}; }
  static inline Sum along_lanes(Sum sum, const char* row, const char* next, const Pair& x) {
    return add(add(sum, wide_doubles(row), x.first), wide_doubles(next), x.second);
  }
  static inline void transposed(const char* from, int64_t stride, Sum* rows) {
    alignas(32) char lanes[kBlock][64];
    for (int64_t lane = 0; lane < 8; ++lane)
#pragma GCC unroll 8
      for (int64_t i = 0; i < kBlock; ++i) std::memcpy(lanes[i] + 8 * lane, from + lane * stride + 8 * i, 8);
    for (int64_t i = 0; i < kBlock; ++i) rows[i] = wide_doubles(lanes[i]);
  }
  static inline Sum add(Sum sum, Sum row, Wide x) { return fused(sum, row, x); }
};

// The bits of the int32 sum of 8.
inline float total_of_words(const float* sums) {
  uint32_t sum = 0, one;
  float same;
  for (int i = 0; i < 8; ++i) std::memcpy(&one, sums + i, 4), sum += one;
  std::memcpy(&same, &sum, 4);
  return same;
}

template <>
struct Terms<kInt8> {
  using Sum = Words;
  using Wide = int16_t;
  using Total = float;
  static constexpr int kBytes = 1, kStep = 16;
  static constexpr bool kExact = true;
  static inline Sum start(const Total* sums) { return load(sums); }
  static inline void keep(Sum sum, Total* sums) { store(sums, sum); }
  static inline Sum along_k(Sum sum, const char* from, const Wide* x) { return fused_along_k(sum, from, x); }
  static inline Total total(const Total* sums) { return total_of_words(sums); }
  using Pair = Words;
  static inline Pair pair(const Wide* x) { return spread_pair(x); }
  static inline Sum along_lanes(Sum sum, const char* row, const char* next, Pair x) {
    return fused_along_lanes(sum, row, next, x);
  }
};

template <>
struct Terms<kInt32> {
  using Sum = Words;
  using Wide = int32_t;
  using Total = float;
  static constexpr int kBytes = 4, kStep = 8;
  static constexpr bool kExact = true;
  static inline Sum start(const Total* sums) { return load(sums); }
  static inline void keep(Sum sum, Total* sums) { store(sums, sum); }
  static inline Sum along_k(Sum sum, const char* from, const Wide* x) { return added(sum, product(load(from), load(x))); }
  static inline Total total(const Total* sums) { return total_of_words(sums); }
  struct Pair {
    Words first, second;
  };
  static inline Pair pair(const Wide* x) { return {bits_of(x[0]), bits_of(x[1])}; }
  static inline Sum along_lanes(Sum sum, const char* row, const char* next, const Pair& x) {
    return added(added(sum, product(load(row), x.first)), product(load(next), x.second));
  }
};

struct Vector {
  Call call;         // of one row
  const void* x;     // the widened row
  char* own;         // sums of the threads
  int64_t columns;   // of a task
};

// Up to four columns from `from` on, each contiguous, into sums.
template <class T>
inline void columns_in_lanes(const Vector& v, const char* from, int64_t count, float* sums) {
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

// kGroups times 8 columns of `columns` at `from`, from column `j` on, each contiguous, into sums, which have room for 8. A
// group that would end beyond them begins before: a column may be summed twice, to the same bits.
template <class T, int kGroups>
inline void chained_columns(const Vector& v, const char* from, int64_t j, int64_t columns, typename T::Total* sums) {
  const int64_t k = v.call.k, stride = columns > 1 ? v.call.b.column_stride : 0;  // one column is summed 8 times
  const auto* x = static_cast<const typename T::Wide*>(v.x);
  const typename T::Total zeros[8] = {};
  typename T::Sum sum[kGroups], rows[kBlock];
  int64_t first[kGroups];
  for (int group = 0; group < kGroups; ++group) {
    sum[group] = T::start(zeros);
    first[group] = columns < 8 ? 0 : j + 8 * group < columns - 8 ? j + 8 * group : columns - 8;
  }
  const int64_t whole = columns == 1 || columns >= 8 ? k / kBlock * kBlock : 0;
  for (int64_t q = 0; q < whole; q += kBlock) {
#pragma GCC unroll 2
    for (int group = 0; group < kGroups; ++group) {
      T::transposed(from + first[group] * stride + q * T::kBytes, stride, rows);
#pragma GCC unroll 8
      for (int i = 0; i < kBlock; ++i) sum[group] = T::add(sum[group], rows[i], x[q + i]);
    }
  }
  for (int64_t q = whole; q < k; q += kBlock)
    for (int group = 0; group < kGroups; ++group) {
      constexpr int64_t kBytes = kBlock * T::kBytes;
      alignas(32) char edge[8 * kBytes] = {};
      const int64_t left = k - q < kBlock ? k - q : kBlock;
      for (int64_t i = 0; i < 8 && i < columns; ++i)
        std::memcpy(edge + i * kBytes, from + (first[group] + i) * stride + q * T::kBytes, left * T::kBytes);
      T::transposed(edge, kBytes, rows);
      for (int64_t i = 0; i < left; ++i) sum[group] = T::add(sum[group], rows[i], x[q + i]);
    }
  for (int group = 0; group < kGroups; ++group) T::keep(sum[group], sums + first[group]);
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
inline void add_rows(const Vector& v, const char* from, int64_t q, int64_t columns,
                     typename T::Total* sums) {
  const auto* x = static_cast<const typename T::Wide*>(v.x) + q;
  const int64_t left = v.call.k - q;
  const char* rows[kRows];
  typename T::Pair pairs[kRows / 2];
  for (int i = 0; i < kRows; ++i) rows[i] = from + (q + (i < left ? i : 0)) * v.call.b.row_stride;  // beyond, x adds nothing
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

// How a task sums: rows of a b that is contiguous along its columns; or columns that are contiguous along k, in lanes or in a
// chain.
enum class Sums { kRows, kLanes, kChain };

template <class T, Sums kSums>
void task_of(void* context, int64_t task, int64_t thread) {
  const Vector& v = *static_cast<const Vector*>(context);
  const int64_t first = task * v.columns, left = v.call.n - first, columns = left < v.columns ? left : v.columns;
  // The last task has 8 columns for a chain, where there are so many, with some of the task before.
  const int64_t before = kSums != Sums::kChain || columns >= 8 || first == 0 ? 0 : 8 - columns;
  const int64_t stride = v.call.b.column_stride, count = before + columns;
  const char* const from = reinterpret_cast<const char*>(v.call.b.data) + (first - before) * stride;
  auto* const sums = reinterpret_cast<typename T::Total*>(v.own + thread * kOwnBytes);
  if constexpr (kSums == Sums::kLanes) {
    for (int64_t j = 0; j < columns; j += 4)
      columns_in_lanes<T>(v, from + j * stride, columns - j < 4 ? columns - j : 4, sums + j);
  } else if constexpr (kSums == Sums::kChain) {
    for (int64_t j = 0; j < count; j += 16)
      (count - j > 8 ? chained_columns<T, 2> : chained_columns<T, 1>)(v, from, j, count, sums);
  } else {
    std::memset(sums, 0, kOwnBytes);
    for (int64_t q = 0; q < v.call.k; q += kRows)
      add_rows<T>(v, from, q, columns, sums);
  }
  finish(v.call, reinterpret_cast<const float*>(sums + before), 0, 0, 1, first, columns);
  end_finishing();
}

template <class T, Sums kSums>
void share_columns(Vector* v) {
  constexpr int64_t size = T::kBytes, kMostColumns = kMostBytes / sizeof(typename T::Total);
  constexpr bool kAlongK = kSums != Sums::kRows;
  const int64_t n = v->call.n, bytes = n * v->call.k * size, wanted = bytes / kThreadBytes;
  const int64_t threads = allowed(wanted < v->call.threads ? wanted : v->call.threads);
  // Along the columns the stretches are long: shorter ones are read from memory more slowly.
  constexpr int64_t least = kSums == Sums::kLanes ? 4 : kSums == Sums::kChain ? 16 : 256 / size;
  const int64_t columns = (kAlongK ? kTaskBytes / (v->call.k * size) : n / threads) / least * least;
  v->columns = columns < least ? least : columns > kMostColumns ? kMostColumns : columns;
  share(task_of<T, kSums>, v, (n + v->columns - 1) / v->columns, threads);
}

template <class T>
void multiply_row(Vector* v, bool along_k) {
  if (!along_k) return share_columns<T, Sums::kRows>(v);
  if constexpr (!T::kExact)
    if (v->call.pinned || T::kStep == 0) return share_columns<T, Sums::kChain>(v);
  if constexpr (T::kStep != 0) share_columns<T, Sums::kLanes>(v);
}

template <int64_t kDtype>
void widen(const Call& call, void* to) {
  constexpr int64_t kSize = kDtype == kFloat64 ? 8 : kDtype == kFloat32 || kDtype == kInt32 ? 4 : kDtype == kInt8 ? 1 : 2;
  for (int64_t q = 0; q < call.k; q += 8) {
    alignas(32) char edge[64] = {};
    for (int64_t i = 0; i < 8 && q + i < call.k; ++i)
      std::memcpy(edge + i * kSize, reinterpret_cast<const char*>(call.a.data) + (q + i) * call.a.column_stride, kSize);
    if constexpr (kDtype == kInt8)
      for (int i = 0; i < 8; ++i) static_cast<int16_t*>(to)[q + i] = static_cast<int8_t>(edge[i]);
    else if constexpr (kDtype == kFloat64)
      std::memcpy(static_cast<double*>(to) + q, edge, 64);
    else if constexpr (kDtype == kInt32)
      store(static_cast<int32_t*>(to) + q, load(edge));
    else
      store(static_cast<float*>(to) + q, bits(wide<kDtype>(edge)));
  }
}

// Behind the vector: a product of 0 by -0 is -0, the sum of which with any sum is that sum.
template <class Wide>
void pad(Wide* end) {
  for (int64_t i = 0; i < kPadding; ++i) end[i] = static_cast<Wide>(-0.0);
}

// The widened vector, and its products.
template <int64_t kDtypeOfA, int64_t kDtypeOfB>
void multiply_row_of(Vector* v, void* x, bool along_k) {
  using T = Terms<kDtypeOfB>;
  widen<kDtypeOfA>(v->call, x);
  pad(static_cast<typename T::Wide*>(x) + v->call.k);
  multiply_row<T>(v, along_k);
}

template <int64_t kDtypeOfB>
void multiply_row_by(Vector* v, void* x, bool along_k) {
  if (v->call.a.dtype == kFloat16) return multiply_row_of<kFloat16, kDtypeOfB>(v, x, along_k);
  if (v->call.a.dtype == kBfloat16) return multiply_row_of<kBfloat16, kDtypeOfB>(v, x, along_k);
  multiply_row_of<kFloat32, kDtypeOfB>(v, x, along_k);
}

}  // namespace

bool gemmhub::multiply_vector(const Call& call) {
  if (call.packed || (call.m != 1 && call.n != 1) || call.k < 1 || call.out.dtype == kInt64) return false;
  const Word word = kUnits[call.unit]->word;
  // int8 and float8 are packed as wider floats, where not both operands are int8.
  const bool bytes = size_of(call.a.dtype) == 1 || size_of(call.b.dtype) == 1;
  if (bytes && (call.a.dtype != kInt8 || call.b.dtype != kInt8)) return false;
  // Of a pinned product the order is that of the unit's micro-kernel.
  const bool chain = word == Word::kFloat32 || word == Word::kFloat64Half, exact = call.a.dtype == kInt8 || call.a.dtype == kInt32;
  if (call.pinned && !chain && !exact) return false;
  Vector v = {call.m == 1 ? call : exchanged(call), nullptr, nullptr, 0};
  const Matrix& b = v.call.b;
  const int64_t size = size_of(b.dtype);
  const bool along_k = b.row_stride == size;
  if (!along_k && b.column_stride != size) return false;
  const int64_t start = (call.workspace + 63) / 64 * 64, wide = size == 8 ? 8 : 4;
  const int64_t vector_bytes = (wide * (call.k + kPadding) + 63) / 64 * 64;
  if (start + vector_bytes + call.threads * kOwnBytes > call.workspace + call.workspace_bytes) return false;
  void* const x = reinterpret_cast<void*>(start);
  v.x = x;
  v.own = reinterpret_cast<char*>(start + vector_bytes);
  if (b.dtype == kInt8) multiply_row_of<kInt8, kInt8>(&v, x, along_k);
  if (b.dtype == kInt32) multiply_row_of<kInt32, kInt32>(&v, x, along_k);
  if (b.dtype == kFloat64) multiply_row_of<kFloat64, kFloat64>(&v, x, along_k);
  if (b.dtype == kFloat16) multiply_row_by<kFloat16>(&v, x, along_k);
  if (b.dtype == kBfloat16) multiply_row_by<kBfloat16>(&v, x, along_k);
  if (b.dtype == kFloat32) multiply_row_by<kFloat32>(&v, x, along_k);
  return true;
}
