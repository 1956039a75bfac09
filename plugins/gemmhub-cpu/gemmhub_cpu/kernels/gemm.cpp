// The driver: how a product is blocked, packed and shared between threads, and the functions that Python calls.
//
// The result is cut into bands of columns, for which b is packed, and those into blocks of rows, for which a is packed, as
// large as the workspace allows. All threads pack, then all threads multiply: a task is a tile of the result over the whole
// of k, in blocks of k whose operands stay in the caches. A result that lies as the sums do is summed in place, any other
// in a tile of the thread, which finish() rounds and stores. Where the rows make one tile only, b is packed by the task that
// multiplies it, into memory of the thread. Where the unit reads rows as they lie, a is not packed but for the rows that do
// not fill a micro-tile. How a result is summed depends on k and the unit alone.
#include "gemm.h"

#include <cstring>

#include "mode.h"
#include "pack.h"
#include "pool.h"
#include "sizes.h"
#include "unit.h"

namespace {

using namespace gemmhub;

constexpr int64_t kTileRows = 128, kTileColumns = 192;  // multiples of every micro-tile's
constexpr int64_t kLargeTileRows = 256, kLargeTileColumns = 384;  // of AMX: how often operands come from L3 counts there
constexpr int64_t kGap = 16;     // elements between the rows of a tile of sums: they are not at the same lines of a cache
constexpr int64_t kSlack = 512;  // bytes of a workspace for alignment

int64_t words_of(const Unit& unit, int64_t k) { return round_up(round_up(k * element_bytes(unit.word), 4) / 4, unit.step); }

int64_t sum_bytes(const Unit& unit) {
  return unit.word == Word::kInt64Half || unit.word == Word::kFloat64Half ? 8 : 4;
}

// Bytes of a packed b (k, n).
int64_t packed_bytes(const Unit& unit, int64_t n, int64_t k) { return 4 * round_up(n, unit.columns) * words_of(unit, k); }

struct Product {
  explicit Product(const Call* call) : call(call), unit(kUnits[call->unit]) {}

  const Call* const call;
  const Unit* const unit;
  int64_t words = 0;
  int64_t tile_rows = kTileRows, tile_columns = kTileColumns;
  bool reads_rows = false;         // of a as they lie
  bool fused = false;              // b is packed by the tasks
  int64_t band = 0, block = 0;     // columns and rows that are packed at a time
  uint32_t *packed_b = nullptr, *packed_a = nullptr;
  int32_t* starts = nullptr;       // of each packed row
  int64_t stride = 0, own_b = 0;   // of a tile of sums, in elements, and the offset of b in the memory of a thread, in bytes
  char* own = nullptr;             // memory of the threads
  int64_t own_bytes = 0;
  bool in_place = false;
  int64_t column = 0, columns = 0, row = 0, rows = 0;  // the current band and block
};

bool sums_in_place(const Call& call) {
  const int64_t size = call.out.dtype == kInt64 || call.out.dtype == kFloat64 ? 8
                       : call.out.dtype == kInt32 || call.out.dtype == kFloat32 ? 4 : 0;
  return size && call.out.column_stride == size && call.out.row_stride % size == 0 && is_plain(call);
}

// Whether sums that could be made in the result are made in tiles: where they are added up in several blocks of k faster than
// the rows of a result come from memory, and where the result is streamed.
bool sums_apart(const Product& p) {
  const bool fast = p.unit->a_order == Order::kBlocks, once = p.words <= p.unit->depth;
  return sum_bytes(*p.unit) == 4 && ((fast && !once) || ((fast || once) && streamed(*p.call)));
}

// Whether the unit reads rows of a as they lie: where one block has all of k, and lines of few rows share a set of the L1 cache.
// Otherwise packing costs less than the lines that each panel of b fetches again.
bool reads_rows(const Product& p) {
  const Call& call = *p.call;
  const int64_t size = element_bytes(p.unit->word);
  return p.unit->multiply_rows && size_of(call.a.dtype) == size && p.words <= p.unit->depth && size * call.k == 4 * p.words &&
         call.a.column_stride == size && call.a.row_stride > 0 && call.a.row_stride < 1024;
}

// Bytes of packed rows of a: the rows of the last micro-tile alone where the others are read as they lie.
int64_t packed_rows(const Product& p, int64_t rows) { return round_up(p.reads_rows ? min(rows, p.unit->rows) : rows, p.unit->rows); }

// Sizes of what is packed at a time within `bytes`; false where not even the smallest fits.
bool fit(Product* p, int64_t bytes) {
  const Call& call = *p->call;
  const Unit& unit = *p->unit;
  p->words = words_of(unit, call.k);
  p->fused = !call.packed && call.m <= kTileRows;
  p->reads_rows = reads_rows(*p);
  if (unit.a_order == Order::kBlocks && !p->fused) p->tile_rows = kLargeTileRows, p->tile_columns = kLargeTileColumns;
  const int64_t row = 4 * p->words + 4, column = 4 * p->words;
  p->band = round_up(max(call.n, 1), unit.columns);
  p->block = round_up(max(call.m, 1), unit.rows);
  const int64_t rows = packed_rows(*p, p->block);
  const int64_t all = rows * row + (p->fused || call.packed ? 0 : p->band * column) + kSlack;  // of what is packed
  const auto too_large = [&] {  // a quarter is enough for the tiles where not all is packed at a time
    p->stride = p->tile_columns + kGap;
    p->own_b = round_up(sum_bytes(unit) * (p->tile_rows * p->stride + kGap), 64);
    p->own_bytes = p->own_b + (p->fused ? 4 * kTileColumns * unit.depth : 0);
    const int64_t tiles = call.threads * p->own_bytes;
    return tiles > bytes / 4 && tiles + all > bytes;
  };
  while (too_large() && p->tile_rows > 64) p->tile_rows /= 2;
  while (too_large() && p->tile_columns > kTileColumns) p->tile_columns /= 2;
  int64_t left = bytes - call.threads * p->own_bytes - kSlack;
  if (!p->fused && !call.packed) {
    const int64_t room = max(left - rows * row, left / 3 * 2);
    p->band = min(p->band, max(room, 0) / max(column, 1) / unit.columns * unit.columns);
    if (p->band <= 0 && p->words) return false;
    if (!p->words) p->band = round_up(max(call.n, 1), unit.columns);
    left -= p->band * column;
  }
  const int64_t room = max(left, 0) / row / unit.rows * unit.rows;
  if (room < rows) p->block = p->reads_rows ? 0 : room;
  return p->block > 0;
}

int64_t workspace_bytes(const Product& p) {
  const int64_t b = p.fused || p.call->packed ? 0 : round_up(4 * p.words * p.band, 64);
  const int64_t rows = packed_rows(p, p.block);
  return b + round_up(4 * p.words * rows, 64) + round_up(4 * rows, 64) + p.call->threads * p.own_bytes + kSlack;
}

Panel panel_of_b(const Unit& unit) { return {unit.word, unit.columns, unit.b_order, unit.starts != nullptr}; }

// Micro-panels of b, of `columns` columns, from word `word` on: `words` of them.
void pack_b(const Product& p, int64_t column, int64_t columns, int64_t word, int64_t words, uint32_t* to) {
  const Call& call = *p.call;
  const int64_t k = word * 4 / element_bytes(p.unit->word);
  const Source b = {reinterpret_cast<const char*>(call.b.data) + column * call.b.column_stride + k * call.b.row_stride,
                    call.b.row_stride, call.b.column_stride, call.b.dtype};
  pack(panel_of_b(*p.unit), b, min(call.n - column, columns), call.k - k, words, to);
}

constexpr int64_t kPanelsOfA = 4;  // packed by one task

// Columns of b packed by one task: long stretches of the rows of b, which memory serves faster than short ones.
int64_t columns_packed(const Product& p) { return 8 * p.unit->columns; }

// The first row of the current block that is packed.
int64_t first_packed(const Product& p) { return p.reads_rows ? p.rows / p.unit->rows * p.unit->rows : 0; }

// Tasks of packing the rows.
int64_t tasks_of_a(const Product& p) {
  const int64_t rows = kPanelsOfA * p.unit->rows;
  return (p.rows - first_packed(p) + rows - 1) / rows;
}

void pack_task(void* context, int64_t task, int64_t) {
  const Product& p = *static_cast<const Product*>(context);
  const Unit& unit = *p.unit;
  const Call& call = *p.call;
  const int64_t tasks = tasks_of_a(p);
  if (task >= tasks) {
    const int64_t columns = columns_packed(p), column = (task - tasks) * columns;
    pack_b(p, p.column + column, min(columns, p.columns - column), 0, p.words, p.packed_b + column * p.words);
    return;
  }
  const int64_t first = first_packed(p), begin = first + task * kPanelsOfA * unit.rows;
  const int64_t end = min(begin + kPanelsOfA * unit.rows, p.rows);
  const Source a = {reinterpret_cast<const char*>(call.a.data) + (p.row + begin) * call.a.row_stride, call.a.column_stride,
                    call.a.row_stride, call.a.dtype};
  pack({unit.word, unit.rows, unit.a_order, false}, a, end - begin, call.k, p.words, p.packed_a + (begin - first) * p.words);
  for (int64_t row = begin - first; unit.starts && row < end - first; row += unit.rows)
    unit.starts(p.packed_a + row * p.words, p.words, p.starts + row);
}

// Adds the products of `deep` words from `word` on, of a micro-panel of b and the rows from `top` on, to the sums at `out`.
void multiply_panel(const Product& p, int64_t word, int64_t deep, const uint32_t* b, int64_t top, int64_t rows,
                    int64_t columns, char* out, int64_t stride) {
  const Unit& unit = *p.unit;
  const int64_t packed = first_packed(p), size = sum_bytes(unit);
  const char* const a = reinterpret_cast<const char*>(p.call->a.data) + (p.row + top) * p.call->a.row_stride + 4 * word;
  for (int64_t i = 0; i < rows; i += unit.rows, out += unit.rows * stride * size) {
    const int64_t row = top + i - packed;  // of the packed ones
    if (row < 0)
      unit.multiply_rows(a + i * p.call->a.row_stride, p.call->a.row_stride, b, deep, word == 0, out, stride, columns);
    else
      unit.multiply(p.packed_a + row * p.words + word * unit.rows, b, deep, unit.starts ? p.starts + row : nullptr,
                    word == 0, out, stride, min(rows - i, unit.rows), columns);
  }
}

void tile_task(void* context, int64_t task, int64_t thread) {
  const Product& p = *static_cast<const Product*>(context);
  const Unit& unit = *p.unit;
  const Call& call = *p.call;
  const int64_t down = round_up(p.rows, p.tile_rows) / p.tile_rows;
  const int64_t top = task % down * p.tile_rows, left = task / down * p.tile_columns;
  const int64_t rows = min(p.rows - top, p.tile_rows), columns = min(p.columns - left, p.tile_columns);
  if (call.symmetric && p.column + left >= p.row + top + rows) return;  // above the diagonal
  char* own = p.own + thread * p.own_bytes;
  const int64_t size = sum_bytes(unit);
  char* out = own;
  int64_t stride = p.stride;
  if (p.in_place) {
    stride = call.out.row_stride / size;
    out = reinterpret_cast<char*>(call.out.data) + ((p.row + top) * stride + p.column + left) * size;
  }
  uint32_t* const own_b = reinterpret_cast<uint32_t*>(own + p.own_b);
  // Of a b in rows all columns of the tile are packed before they are multiplied: its rows are read in one stretch.
  const int64_t packed = call.b.row_stride > call.b.column_stride ? kTileColumns : unit.columns;
  if (unit.begin) unit.begin();
  for (int64_t word = 0; word == 0 || word < p.words; word += unit.depth) {
    const int64_t deep = min(p.words - word, unit.depth);
    for (int64_t j = 0; j < columns; j += unit.columns) {
      const int64_t column = p.column + left + j;
      const uint32_t* b = p.packed_b + (left + j) * p.words + word * unit.columns;
      if (p.fused) {
        if (j % packed == 0) pack_b(p, column, min(columns - j, packed), word, deep, own_b);
        b = own_b + j % packed * deep;
      } else if (call.packed) {
        b = reinterpret_cast<const uint32_t*>(call.packed) + column * p.words + word * unit.columns;
      }
      const int64_t above = call.symmetric ? max(column - p.row - top, 0) / unit.rows * unit.rows : 0;  // rows
      if (above >= rows) continue;
      multiply_panel(p, word, deep, b, top + above, rows - above, min(columns - j, unit.columns),
                     out + (above * stride + j) * size, stride);
    }
  }
  if (unit.end) unit.end();
  if (p.in_place) return;
  finish(call, reinterpret_cast<float*>(out), stride, p.row + top, rows, p.column + left, columns);
  end_finishing();
}

// Threads worth waking for so many multiplications.
int64_t threads_for(const Product& p, double multiplications) {
  return allowed(min(p.call->threads, static_cast<int64_t>(multiplications / worth_a_thread(*p.unit))));
}

// Multiplies the current band and block: by smaller tiles where they would be too few for all threads to end at about the
// same time, and by tiles of about as many rows each: one of few rows reads as much of b as another.
void share_tiles(Product* p, int64_t threads) {
  const int64_t rows = p->tile_rows, columns = p->tile_columns;
  const auto tiles = [p] {
    return round_up(p->rows, p->tile_rows) / p->tile_rows * (round_up(p->columns, p->tile_columns) / p->tile_columns);
  };
  while (!p->fused && p->tile_rows > 32 && tiles() < 4 * threads) p->tile_rows /= 2;
  while (p->tile_columns / 2 % p->unit->columns == 0 && tiles() < threads) p->tile_columns /= 2;
  const int64_t down = round_up(p->rows, p->tile_rows) / p->tile_rows;
  p->tile_rows = round_up((p->rows + down - 1) / down, p->unit->rows);
  share(tile_task, p, tiles(), threads);
  p->tile_rows = rows;
  p->tile_columns = columns;
}

void multiply(Product* p) {
  const Call& call = *p->call;
  const int64_t rows = packed_rows(*p, p->block);
  char* at = reinterpret_cast<char*>(round_up(call.workspace, 64));
  if (!p->fused && !call.packed) {
    p->packed_b = reinterpret_cast<uint32_t*>(at);
    at += round_up(4 * p->words * p->band, 64);
  }
  p->packed_a = reinterpret_cast<uint32_t*>(at);
  at += round_up(4 * p->words * rows, 64);
  p->starts = reinterpret_cast<int32_t*>(at);
  p->own = at + round_up(4 * rows, 64);
  p->in_place = sums_in_place(call) && !sums_apart(*p);
  const int64_t threads = threads_for(*p, static_cast<double>(call.m) * call.n * call.k);
  for (p->column = 0; p->column < call.n; p->column += p->band) {
    p->columns = min(call.n - p->column, p->band);
    for (p->row = 0; p->row < call.m; p->row += p->block) {
      p->rows = min(call.m - p->row, p->block);
      const bool b_too = p->row == 0 && !p->fused && !call.packed;
      share(pack_task, p, tasks_of_a(*p) + (b_too ? round_up(p->columns, columns_packed(*p)) / columns_packed(*p) : 0), threads);
      share_tiles(p, threads);
    }
  }
}

// The call as it is run: of many rows and few columns a is the operand that is too large to be packed, and takes the part of b,
// which the tasks pack, or read as it lies. What is summed, and in which order, does not change.
Call turned(const Call& call) { return !call.packed && call.n <= 32 && call.m > 64 ? exchanged(call) : call; }

struct Packing {
  const Product* product;
  uint32_t* to;
};

void pack_whole_task(void* context, int64_t task, int64_t) {
  const Packing& packing = *static_cast<const Packing*>(context);
  const Product& p = *packing.product;
  const int64_t column = task * columns_packed(p);
  pack_b(p, column, columns_packed(p), 0, p.words, packing.to + column * p.words);
}

}  // namespace

extern "C" {

// Bytes of workspace for the call, beyond call->workspace_bytes by alignment alone; 0 where so few do not suffice.
int64_t gemmhub_cpu_workspace(const Call* call) {
  const Call that = turned(*call);
  Product p(&that);
  return fit(&p, call->workspace_bytes) ? workspace_bytes(p) : 0;
}

// The product. Returns 0, or 1 where the workspace is too small.
int64_t gemmhub_cpu_multiply(const Call* call) {
  const DefaultMode mode;
  Call that = turned(*call);
  if (call->m <= 0 || call->n <= 0) return 0;
  if (!multiply_vector(that) && !multiply_few_rows(that)) {
    Product p(&that);
    if (!fit(&p, call->workspace_bytes)) return 1;
    multiply(&p);
  }
  if (call->symmetric) mirror(&that);
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
  share(pack_whole_task, &packing, round_up(call->n, columns_packed(p)) / columns_packed(p), allowed(call->threads));
}

}  // extern "C"
