// What a micro-kernel is, and what the driver has to know of it.
//
// Operands are packed as words: 4 bytes that hold consecutive elements along k (four int8, two int16 or bfloat16, one
// float32 or int32; int8 and float8 also as bfloat16 or float32, which hold them exactly); an int64 is two words along k, the low one first. A micro-panel of b is [word along k][column], one of a is
// [word along k][row], or as `Order` says. A float64 counts as two words and is whole: [element along k][column].
#pragma once

#include <cstdint>

namespace gemmhub {

// kE4m3 and kE5m2 are float8_e4m3fn and float8_e5m2.
enum Dtype : int64_t {
  kInt8 = 0, kInt32 = 1, kFloat16 = 2, kBfloat16 = 3, kFloat32 = 4, kInt64 = 5, kFloat64 = 6, kE4m3 = 7, kE5m2 = 8
};

// Bytes of an element.
constexpr int64_t size_of(int64_t dtype) {
  return dtype == kInt8 || dtype == kE4m3 || dtype == kE5m2 ? 1 : dtype == kFloat16 || dtype == kBfloat16 ? 2 : dtype == kInt64 || dtype == kFloat64 ? 8 : 4;
}

// kBlocks: blocks of 16 lanes (rows or columns) of 16 words, for AMX; kPairs: [two words along k][lane][two words].
enum class Order { kWords, kBlocks, kPairs };

enum class Word { kInt8x4, kInt16x2, kFloat16x2, kBfloat16x2, kFloat32, kInt32, kInt64Half, kFloat64Half };

// A micro-tile: out (rows, columns) = or += a (rows, words) @ b (words, columns), where `out` is int32, float32, int64 or
// float64 and `stride` the distance of its rows in elements. `first`: the sums begin at `start` (one of each row; null: 0)
// instead of at what `out` holds.
using MicroKernel = void (*)(const uint32_t* a, const uint32_t* b, int64_t words, const int32_t* start, bool first,
                             void* out, int64_t stride, int64_t rows, int64_t columns);

// The same for all rows of a micro-tile, of an `a` that is read where it lies: contiguous along k, its rows `a_stride` bytes
// apart. `words` is a multiple of the unit's step.
using RowsKernel = void (*)(const char* a, int64_t a_stride, const uint32_t* b, int64_t words, bool first, void* out,
                            int64_t stride, int64_t columns);

struct Unit {
  Word word;
  int64_t rows, columns;  // of a micro-tile
  int64_t step;           // words along k that the micro-kernel multiplies at a time: packed operands are padded to it
  int64_t depth;          // words of a block of k: a micro-panel of b this deep stays in the L1 cache
  Order a_order, b_order;
  // Where it is there, b is packed plus 128, and it makes the values at which the sums of a packed micro-panel of a begin:
  // -128 times the sums of its rows.
  void (*starts)(const uint32_t* packed_a, int64_t words, int32_t* start);
  MicroKernel multiply;
  void (*begin)();  // before the first micro-tile of a task; may be null
  void (*end)();    // after the last one
  RowsKernel multiply_rows = nullptr;  // where the unit has one
};

// Multiplications for which a thread is woken.
inline double worth_a_thread(const Unit& unit) {
  return unit.word == Word::kFloat32 || unit.word == Word::kFloat64Half ? 5e5 : 2e6;
}

extern const Unit kInt8Vnni, kInt8Avx2, kInt8Amx, kBfloat16Avx512, kBfloat16Amx, kFloatAvx512, kFloatAvx2,
    kInt32Avx2, kInt64Avx2, kInt8AvxVnni, kInt8AvxVnniInt8, kFloat16Amx, kFloat64Avx512, kFloat64Avx2;  // x86_64
extern const Unit kInt8Dot, kInt8Mmla, kBfloat16Mmla, kFloatNeon, kFloat64Neon;                     // aarch64

extern const Unit* const kUnits[];  // of this architecture; native_engine.py has their places

}  // namespace gemmhub
