// Products of few rows by a b that is contiguous along k, as the weights of a layer are stored, limited by memory: b is read
// once as it lies, and not packed.
//
// The operands change roles: out^T = b^T a^T. The columns of b are the rows that the micro-kernel reads in place; the few rows
// of a are packed as its other operand. A task makes the sums of some columns, in blocks of k whose part of a stays in the L1
// cache, and transposes them for finish(). How a result is summed does not differ from that of the driver in gemm.cpp.
#include <cstring>

#include "elements.h"
#include "gemm.h"
#include "pack.h"
#include "pool.h"
#include "sizes.h"

namespace {

using namespace gemmhub;

constexpr int64_t kColumns = 128;           // of a task
constexpr int64_t kThreadBytes = 1 << 18;   // of b, for which a thread is woken

struct FewRows {
  const Call* call;
  const Unit* unit;
  int64_t words;
  const uint32_t* packed_a;
  char* own;  // sums of the threads: a row for each column of b, and then the same transposed
};

// finish() may read 16 sums behind the last ones.
int64_t own_bytes(const Unit& unit) { return 4 * (unit.columns * (unit.rows + 2 * kColumns) + 16); }

// Lines of the `rows` columns of b at `from` into the L2 cache.
void prefetch(const char* from, int64_t stride, int64_t rows, int64_t bytes) {
  for (int64_t i = 0; i < rows; ++i, from += stride)
    for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(from + byte, 0, 2);
}

void columns_task(void* context, int64_t task, int64_t thread) {
  const FewRows& p = *static_cast<const FewRows*>(context);
  const Unit& unit = *p.unit;
  const Call& call = *p.call;
  const int64_t first = task * kColumns, columns = min(call.n - first, kColumns), stride = call.b.column_stride;
  const char* const b = reinterpret_cast<const char*>(call.b.data);
  float* const sums = reinterpret_cast<float*>(p.own + thread * own_bytes(unit));
  // Micro-tiles are whole: one that would end beyond b begins `early` columns before, with sums that are not used.
  const int64_t whole = columns / unit.rows * unit.rows, early = round_up(columns, unit.rows) - columns;
  if (unit.begin) unit.begin();
  for (int64_t word = 0; word < p.words; word += unit.depth) {
    const int64_t deep = min(p.words - word, unit.depth);
    for (int64_t i = 0; i < columns; i += unit.rows) {
      const char* const from = b + (first + i - (i < whole ? 0 : early)) * stride + 4 * word;
      prefetch(from + unit.rows * stride, stride, unit.rows, 4 * deep);
      unit.multiply_rows(from, stride, p.packed_a + word * unit.columns, deep, word == 0,
                         sums + i * unit.columns, unit.columns, unit.columns);
    }
  }
  if (unit.end) unit.end();
  float* const turned = sums + (unit.rows + kColumns) * unit.columns;
  for (int64_t j = 0; j < columns; j += 8)
    for (int64_t i = 0; i < call.m; i += 8) {
      const float* const from = sums + (j < whole ? j : j + early) * unit.columns + i;
      Words v[8];
      Widened<kFloat32>::transposed(reinterpret_cast<const char*>(from), 4 * unit.columns, v);
      for (int64_t q = 0; q < 8; ++q) store(turned + (i + q) * kColumns + j, v[q]);
    }
  finish(call, turned, kColumns, 0, call.m, first, columns);
  end_finishing();
}

}  // namespace

bool gemmhub::multiply_few_rows(const Call& call) {
  const Unit& unit = *kUnits[call.unit];
  const int64_t size = element_bytes(unit.word), words = call.k * size / 4;
  if (!unit.multiply_rows || call.packed || call.m > unit.columns || call.n < unit.rows || call.k < 1) return false;
  if (size_of(call.b.dtype) != size || call.b.row_stride != size || call.k * size % (4 * unit.step)) return false;
  const int64_t start = round_up(call.workspace, 64), bytes = 4 * words * unit.columns;
  if (start + bytes + call.threads * own_bytes(unit) > call.workspace + call.workspace_bytes) return false;
  uint32_t* const packed_a = reinterpret_cast<uint32_t*>(start);
  const Source a = {reinterpret_cast<const char*>(call.a.data), call.a.column_stride, call.a.row_stride, call.a.dtype};
  pack({unit.word, unit.columns, unit.b_order, false}, a, call.m, call.k, words, packed_a);
  FewRows p = {&call, &unit, words, packed_a, reinterpret_cast<char*>(start + bytes)};
  const int64_t threads = allowed(min(call.threads, call.n * call.k * size / kThreadBytes));
  share(columns_task, &p, (call.n + kColumns - 1) / kColumns, threads);
  return true;
}
