// The rate of each micro-kernel of gemmhub-cpu that this processor has, without threads, packing of operands or an epilogue,
// and of its instruction on registers alone: lines "UNIT CASE G/s", G/s of 2 operations a multiplication. Linked with the
// kernels by cpu_kernels.py, which names the units; arguments are their indices, with ":amx" behind those that need tile
// registers.
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sizes.h"
#include "unit.h"

#ifdef __x86_64__
#include <immintrin.h>

#include "x86_64/amx.h"

extern "C" int64_t gemmhub_cpu_request_amx();
#endif

namespace {

using namespace gemmhub;

constexpr double kSeconds = 0.2;  // of each rate: the best of many rounds, of a machine that others use

double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

uint32_t* words(int64_t count) {  // each a small number in any format
  auto* memory = static_cast<uint32_t*>(aligned_alloc(64, round_up(4 * count, 64)));
  for (int64_t i = 0; i < count; ++i) memory[i] = 0x3c003c00;
  return memory;
}

// A tile of rows x columns results, of panels of `depth` words: all of a and b are read again and again.
double rate(const Unit& unit, int64_t rows, int64_t columns, int64_t depth) {
  uint32_t *a = words(rows * depth), *b = words(columns * depth);
  void* const out = words(2 * rows * columns);
  int32_t* const starts = reinterpret_cast<int32_t*>(words(rows + 16));
  const int64_t per_word = unit.word == Word::kInt8x4 ? 4 : unit.word == Word::kFloat32 ? 1 : 2;
  double best = 1e9;
  const double operations = 2.0 * static_cast<double>(rows * columns * depth * per_word);
  const int64_t repeats = 1 + static_cast<int64_t>(3e8 / operations);
  for (double left = kSeconds, begin = now(); left > 0; left = kSeconds - (now() - begin)) {
    if (unit.begin) unit.begin();
    const double start = now();
    for (int64_t r = 0; r < repeats; ++r)
      for (int64_t q = 0; q < depth; q += unit.depth) {
        const int64_t deep = depth - q < unit.depth ? depth - q : unit.depth;
        for (int64_t j = 0; j < columns; j += unit.columns)
          for (int64_t i = 0; i < rows; i += unit.rows)
            unit.multiply(a + i * depth + q * unit.rows, b + j * depth + q * unit.columns, deep,
                          unit.starts ? starts + i : nullptr, q == 0, static_cast<float*>(out) + i * columns + j, columns,
                          unit.rows, unit.columns);
      }
    const double seconds = (now() - start) / static_cast<double>(repeats);
    best = seconds < best ? seconds : best;
    if (unit.end) unit.end();
  }
  std::free(a), std::free(b), std::free(out), std::free(starts);
  return operations / best / 1e9;
}

#ifdef __x86_64__
// G/s of 12 independent sums, or of the four tiles of a micro-tile: what no loads wait for. 0 where it is not written here.
template <class Run>
double on_registers(double operations, Run run) {
  double best = 1e9;
  for (double left = kSeconds, begin = now(); left > 0; left = kSeconds - (now() - begin)) {
    const double start = now();
    run();
    const double seconds = now() - start;
    best = seconds < best ? seconds : best;
  }
  return operations / best / 1e9;
}

constexpr int kTimes = 100000;
#define EACH_SUM(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define ADD_FLOATS_512(i) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #i "\n"
#define ADD_BYTES_512(i) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #i "\n"
#define ADD_FLOATS_256(i) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #i "\n"
#define ZEROED_512 "vpxord %%zmm30, %%zmm30, %%zmm30\nvpxord %%zmm31, %%zmm31, %%zmm31\n"
#define ZEROED(i) "vpxor %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n"
#define NAMES "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"

double peak(const Unit& unit) {
  if (&unit == &kInt8Amx || &unit == &kBfloat16Amx) {
    const bool bytes = &unit == &kInt8Amx;
    configure_tiles();
    const double rate = on_registers(2.0 * 32 * 32 * (bytes ? 64 : 32) * kTimes, [bytes] {
      for (int i = 0; i < kTimes; ++i) {
        if (bytes)
          tile_int8<0, 4, 6>(), tile_int8<1, 4, 7>(), tile_int8<2, 5, 6>(), tile_int8<3, 5, 7>();
        else
          tile_bfloat16<0, 4, 6>(), tile_bfloat16<1, 4, 7>(), tile_bfloat16<2, 5, 6>(), tile_bfloat16<3, 5, 7>();
      }
    });
    release_tiles();
    return rate;
  }
  asm volatile(EACH_SUM(ZEROED) ZEROED(14) ZEROED(15) : : : NAMES, "xmm14", "xmm15");
  if (&unit == &kFloatAvx512 || &unit == &kInt8Vnni) asm volatile(ZEROED_512 :);  // subnormal numbers would be slow
  if (&unit == &kFloatAvx512)
    return on_registers(2.0 * 12 * 16 * kTimes, [] {
      for (int i = 0; i < kTimes; ++i) asm volatile(EACH_SUM(ADD_FLOATS_512) : : : NAMES);
    });
  if (&unit == &kInt8Vnni)
    return on_registers(2.0 * 12 * 64 * kTimes, [] {
      for (int i = 0; i < kTimes; ++i) asm volatile(EACH_SUM(ADD_BYTES_512) : : : NAMES);
    });
  if (&unit == &kFloatAvx2)
    return on_registers(2.0 * 12 * 8 * kTimes, [] {
      for (int i = 0; i < kTimes; ++i) asm volatile(EACH_SUM(ADD_FLOATS_256) : : : NAMES);
    });
  return 0;
}
#else
double peak(const Unit&) { return 0; }
#endif

}  // namespace

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
#ifdef __x86_64__
    if (std::strstr(arguments[i], ":amx") && gemmhub_cpu_request_amx()) continue;
#endif
    const long index = std::atol(arguments[i]);
    const Unit& unit = *kUnits[index];
    const double registers = peak(unit);
    if (registers > 0) std::printf("%ld registers %.1f\n", index, registers);
    std::printf("%ld L1 %.1f\n", index, rate(unit, unit.rows, unit.columns, unit.depth));
    std::printf("%ld L2 %.1f\n", index, rate(unit, round_up(128, unit.rows), round_up(192, unit.columns), unit.depth));
    std::printf("%ld L3 %.1f\n", index, rate(unit, round_up(512, unit.rows), round_up(1024, unit.columns), 2 * unit.depth));
    std::printf("%ld memory %.1f\n", index, rate(unit, round_up(2048, unit.rows), round_up(2048, unit.columns), 1024));
    std::fflush(stdout);
  }
  return 0;
}
