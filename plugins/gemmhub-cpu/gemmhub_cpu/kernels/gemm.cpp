// The driver: how a product is blocked, packed and shared between threads, and the functions that Python calls.
//
// The result is cut into bands of columns, for which b is packed, and those into blocks of rows, for which a is packed, as
// large as the workspace allows. All threads pack, then all threads multiply: a task is a tile of the result over the whole
// of k, in blocks of k whose operands stay in the caches. A result that lies as the sums do is summed in place, any other
// in a tile of the thread, which finish() rounds and stores. Where the rows make one tile only, b is packed by the task that
// multiplies it, into memory of the thread. How a result is summed depends on k and the unit alone.
#include "gemm.h"

#include <cstring>

#include "mode.h"
#include "pack.h"
#include "pool.h"
#include "unit.h"

namespace {

using namespace gemmhub;

constexpr int64_t kTileRows = 128, kTileColumns = 192;  // multiples of every micro-tile's
constexpr int64_t kTileBytes = 4 * kTileRows * kTileColumns;
constexpr int64_t kSlack = 512;  // bytes of a workspace for alignment

int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
int64_t most(int64_t x, int64_t y) { return x > y ? x : y; }
int64_t whole(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

int64_t words_of(const Unit& unit, int64_t k) { return whole(whole(k, elements(unit.word)) / elements(unit.word), unit.step); }

// Bytes of a packed b (k, n).
int64_t packed_bytes(const Unit& unit, int64_t n, int64_t k) { return 4 * whole(n, unit.columns) * words_of(unit, k); }

struct Product {
  explicit Product(const Call* call) : call(call), unit(kUnits[call->unit]) {}

  const Call* const call;
  const Unit* const unit;
  int64_t words = 0;
  int64_t tile_rows = 0, tile_columns = 0;
  bool fused = false;              // b is packed by the tasks
  int64_t band = 0, block = 0;     // columns and rows that are packed at a time
  uint32_t *packed_b = nullptr, *packed_a = nullptr;
  int32_t* starts = nullptr;       // of each packed row
  char* own = nullptr;             // memory of the threads
  int64_t own_bytes = 0;
  bool in_place = false;
  int64_t column = 0, columns = 0, row = 0, rows = 0;  // the current band and block
};

bool sums_in_place(const Call& call) {
  const bool sums = call.out.dtype == kInt32 || call.out.dtype == kFloat32;
  return sums && call.out.column_stride == 4 && call.out.row_stride % 4 == 0 && call.alpha == 1 && !call.c.data &&
         !call.bias && !call.relu;
}

// Sizes of what is packed at a time within `bytes`; false where not even the smallest fits.
bool fit(Product* p, int64_t bytes) {
  const Call& call = *p->call;
  const Unit& unit = *p->unit;
  p->words = words_of(unit, call.k);
  p->fused = !call.packed && call.m <= kTileRows;
  p->own_bytes = kTileBytes + (p->fused ? 4 * kTileColumns * unit.depth : 0);
  int64_t left = bytes - call.threads * p->own_bytes - kSlack;
  const int64_t row = 4 * p->words + 4, column = 4 * p->words;
  p->band = whole(most(call.n, 1), unit.columns);
  p->block = whole(most(call.m, 1), unit.rows);
  if (!p->fused && !call.packed) {
    const int64_t room = most(left - p->block * row, left / 3 * 2);
    p->band = least(p->band, most(room, 0) / most(column, 1) / unit.columns * unit.columns);
    if (p->band <= 0 && p->words) return false;
    if (!p->words) p->band = whole(most(call.n, 1), unit.columns);
    left -= p->band * column;
  }
  p->block = least(p->block, most(left, 0) / row / unit.rows * unit.rows);
  return p->block > 0;
}

int64_t workspace_bytes(const Product& p) {
  const int64_t b = p.fused || p.call->packed ? 0 : whole(4 * p.words * p.band, 64);
  return b + whole(4 * p.words * p.block, 64) + whole(4 * p.block, 64) + p.call->threads * p.own_bytes + kSlack;
}

Panel panel_of_b(const Unit& unit) { return {unit.word, unit.columns, unit.b_order, unit.starts != nullptr}; }

// A micro-panel of b from word `word` on: `words` of them.
void pack_b(const Product& p, int64_t column, int64_t word, int64_t words, uint32_t* to) {
  const Call& call = *p.call;
  const int64_t k = word * elements(p.unit->word);
  const Source b = {reinterpret_cast<const char*>(call.b.data) + column * call.b.column_stride + k * call.b.row_stride,
                    call.b.row_stride, call.b.column_stride, call.b.dtype};
  pack(panel_of_b(*p.unit), b, least(call.n - column, p.unit->columns), call.k - k, words, to);
}

constexpr int64_t kPanelsOfA = 4;  // packed by one task

void pack_task(void* context, int64_t task, int64_t) {
  const Product& p = *static_cast<const Product*>(context);
  const Unit& unit = *p.unit;
  const Call& call = *p.call;
  const int64_t panels = whole(whole(p.rows, unit.rows) / unit.rows, kPanelsOfA) / kPanelsOfA;
  if (task >= panels) {
    const int64_t column = (task - panels) * unit.columns;
    pack_b(p, p.column + column, 0, p.words, p.packed_b + column * p.words);
    return;
  }
  const int64_t end = least((task + 1) * kPanelsOfA * unit.rows, p.rows);
  for (int64_t row = task * kPanelsOfA * unit.rows; row < end; row += unit.rows) {
    const Source a = {reinterpret_cast<const char*>(call.a.data) + (p.row + row) * call.a.row_stride, call.a.column_stride,
                      call.a.row_stride, call.a.dtype};
    uint32_t* to = p.packed_a + row * p.words;
    pack({unit.word, unit.rows, unit.a_order, false}, a, least(p.rows - row, unit.rows), call.k, p.words, to);
    if (unit.starts) unit.starts(to, p.words, p.starts + row);
  }
}

void tile_task(void* context, int64_t task, int64_t thread) {
  const Product& p = *static_cast<const Product*>(context);
  const Unit& unit = *p.unit;
  const Call& call = *p.call;
  const int64_t down = whole(p.rows, p.tile_rows) / p.tile_rows;
  const int64_t top = task % down * p.tile_rows, left = task / down * p.tile_columns;
  const int64_t rows = least(p.rows - top, p.tile_rows), columns = least(p.columns - left, p.tile_columns);
  char* own = p.own + thread * p.own_bytes;
  float* out = reinterpret_cast<float*>(own);
  int64_t stride = kTileColumns;
  if (p.in_place) {
    stride = call.out.row_stride / 4;
    out = reinterpret_cast<float*>(call.out.data) + (p.row + top) * stride + p.column + left;
  }
  uint32_t* const own_b = reinterpret_cast<uint32_t*>(own + kTileBytes);
  if (unit.begin) unit.begin();
  for (int64_t word = 0; word == 0 || word < p.words; word += unit.depth) {
    const int64_t deep = least(p.words - word, unit.depth);
    for (int64_t j = 0; j < columns; j += unit.columns) {
      const int64_t column = p.column + left + j;
      const uint32_t* b = p.packed_b + (left + j) * p.words + word * unit.columns;
      if (p.fused) {
        pack_b(p, column, word, deep, own_b);
        b = own_b;
      } else if (call.packed) {
        b = reinterpret_cast<const uint32_t*>(call.packed) + column * p.words + word * unit.columns;
      }
      for (int64_t i = 0; i < rows; i += unit.rows)
        unit.multiply(p.packed_a + (top + i) * p.words + word * unit.rows, b, deep,
                      unit.starts ? p.starts + top + i : nullptr, word == 0, out + i * stride + j, stride,
                      least(rows - i, unit.rows), least(columns - j, unit.columns));
    }
  }
  if (unit.end) unit.end();
  if (!p.in_place) finish(call, out, stride, p.row + top, rows, p.column + left, columns);
}

// Threads worth waking for so many multiplications.
int64_t threads_for(const Product& p, double multiplications) {
  const double rate = p.unit->word == Word::kFloat32 ? 1 : 4;
  return allowed(least(p.call->threads, static_cast<int64_t>(multiplications / (rate * 5e5))));
}

// Multiplies the current band and block: by smaller tiles where they would be too few for all threads to end at about the
// same time.
void share_tiles(Product* p, int64_t threads) {
  p->tile_rows = kTileRows;
  p->tile_columns = kTileColumns;
  const auto tiles = [p] {
    return whole(p->rows, p->tile_rows) / p->tile_rows * (whole(p->columns, p->tile_columns) / p->tile_columns);
  };
  while (!p->fused && p->tile_rows > 32 && tiles() < 4 * threads) p->tile_rows /= 2;
  while (p->tile_columns / 2 % p->unit->columns == 0 && tiles() < threads) p->tile_columns /= 2;
  share(tile_task, p, tiles(), threads);
}

void multiply(Product* p) {
  const Call& call = *p->call;
  const Unit& unit = *p->unit;
  char* at = reinterpret_cast<char*>(whole(call.workspace, 64));
  if (!p->fused && !call.packed) {
    p->packed_b = reinterpret_cast<uint32_t*>(at);
    at += whole(4 * p->words * p->band, 64);
  }
  p->packed_a = reinterpret_cast<uint32_t*>(at);
  at += whole(4 * p->words * p->block, 64);
  p->starts = reinterpret_cast<int32_t*>(at);
  p->own = at + whole(4 * p->block, 64);
  p->in_place = sums_in_place(call);
  const int64_t threads = threads_for(*p, static_cast<double>(call.m) * call.n * call.k);
  for (p->column = 0; p->column < call.n; p->column += p->band) {
    p->columns = least(call.n - p->column, p->band);
    for (p->row = 0; p->row < call.m; p->row += p->block) {
      p->rows = least(call.m - p->row, p->block);
      const int64_t panels = whole(whole(p->rows, unit.rows) / unit.rows, kPanelsOfA) / kPanelsOfA;
      const bool b_too = p->row == 0 && !p->fused && !call.packed;
      share(pack_task, p, panels + (b_too ? whole(p->columns, unit.columns) / unit.columns : 0), threads);
      share_tiles(p, threads);
    }
  }
}

struct Packing {
  const Product* product;
  uint32_t* to;
};

void pack_whole_task(void* context, int64_t task, int64_t) {
  const Packing& packing = *static_cast<const Packing*>(context);
  const Product& p = *packing.product;
  const int64_t column = task * p.unit->columns;
  pack_b(p, column, 0, p.words, packing.to + column * p.words);
}

}  // namespace

extern "C" {

// Bytes of workspace for the call, at most call->workspace_bytes; 0 where so few do not suffice.
int64_t gemmhub_cpu_workspace(const Call* call) {
  Product p(call);
  return fit(&p, call->workspace_bytes) ? workspace_bytes(p) : 0;
}

// The product. Returns 0, or 1 where the workspace is too small.
int64_t gemmhub_cpu_multiply(const Call* call) {
  const DefaultMode mode;
  if (call->m <= 0 || call->n <= 0 || multiply_vector(*call)) return 0;
  Product p(call);
  if (!fit(&p, call->workspace_bytes)) return 1;
  multiply(&p);
  return 0;
}

// Bytes of the packed form of b.
int64_t gemmhub_cpu_packed_bytes(const Call* call) { return packed_bytes(*kUnits[call->unit], call->n, call->k); }

// Packs b into call->packed.
void gemmhub_cpu_pack(const Call* call) {
  const DefaultMode mode;
  Product p(call);
  p.words = words_of(*p.unit, call->k);
  Packing packing{&p, reinterpret_cast<uint32_t*>(call->packed)};
  share(pack_whole_task, &packing, whole(call->n, p.unit->columns) / p.unit->columns, allowed(call->threads));
}

}  // extern "C"
