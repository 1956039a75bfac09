// The epilogue by sixteen lanes has the bits of that by eight, where the processor has AVX-512: results of every dtype, with and
// without addends, from any column and address on, streamed and not; and nothing is written beside them. And no step of an
// activation is subnormal: its results are the same where the processor flushes such numbers.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <random>

#include "vector.h"

#include "finish_rows.h"

namespace gemmhub {
void finish_by_16(const Call& call, const float* sums, int64_t stride, int64_t row, int64_t rows, int64_t column,
                  int64_t columns);
}

namespace {

constexpr gemmhub::Unit kIntegers = {gemmhub::Word::kInt8x4}, kFloats = {gemmhub::Word::kFloat32};

}  // namespace

const gemmhub::Unit* const gemmhub::kUnits[] = {&kFloats, &kIntegers};  // the sums of a unit: floats, and integers

namespace {

using namespace gemmhub;

constexpr int64_t kSums = 64, kBytes = 1 << 14;
std::mt19937 generator(std::random_device{}());

int64_t drawn(int64_t from, int64_t to) { return from + static_cast<int64_t>(generator() % static_cast<uint32_t>(to - from + 1)); }

struct Operands {
  alignas(64) float sums[32 * kSums + 16];
  alignas(64) char c[1 << 17];
  alignas(64) float bias[1 << 10];
};

float number() {
  const int64_t which = drawn(0, 40);
  if (which == 0) return __builtin_inff();
  if (which == 1) return __builtin_nanf("");
  return std::normal_distribution<float>()(generator) * std::exp2f(static_cast<float>(drawn(-20, 8)));
}

bool alike(const Operands& x, char* first, char* second) {
  Call call{};
  const int64_t dtypes[] = {kFloat16, kBfloat16, kFloat32};
  call.out.dtype = dtypes[drawn(0, 2)];
  const int64_t size = size_of(call.out.dtype), rows = drawn(1, 9), columns = drawn(1, 50), row = drawn(0, 3), column = drawn(0, 5);
  const bool large = drawn(0, 1);  // larger than any L2 cache, of which some rows are written
  call.m = large ? 1 << 14 : 16, call.n = large ? 1 << 14 : 64;
  call.out.column_stride = size * (drawn(0, 3) ? 1 : 3);
  call.out.row_stride = drawn(0, 1) ? 512 : 500;
  call.alpha = drawn(0, 2) ? 1 : static_cast<double>(drawn(0, 2)) / 4;
  if (drawn(0, 1)) {
    call.c.dtype = dtypes[drawn(0, 2)];
    call.c.data = reinterpret_cast<int64_t>(x.c);
    call.c.column_stride = size_of(call.c.dtype) * drawn(1, 2);
    call.c.row_stride = 600;
    call.beta = drawn(0, 1) ? 1 : -0.5;
  }
  if (drawn(0, 1)) {
    call.bias.data = reinterpret_cast<int64_t>(x.bias);
    (drawn(0, 1) ? call.bias.row_stride : call.bias.column_stride) = 4 * drawn(1, 2);
  }
  for (Strip* scale : {&call.scale_a, &call.scale_b})
    if (drawn(0, 1)) *scale = {reinterpret_cast<int64_t>(x.bias + drawn(0, 50)), 4 * drawn(0, 2), 4 * drawn(0, 2)};
  if (!drawn(0, 3)) call.scale_out = reinterpret_cast<int64_t>(x.bias);
  call.unit = drawn(0, 1);
  call.activation = drawn(0, 1) ? drawn(1, 4) : 0;
  const int64_t offset = size * drawn(0, 40);
  for (char* at : {first, second}) {
    std::memset(at, 0x77, kBytes);
    call.out.data = reinterpret_cast<int64_t>(at) + offset;
    (at == first ? finish_by_lanes : finish_by_16)(call, x.sums, kSums, row, rows, column, columns);
  }
  end_streaming();
  if (!std::memcmp(first, second, kBytes)) return true;
  std::printf("dtype %ld, %ld x %ld from %ld, %ld, c %d, bias %d, activation %ld\n", static_cast<long>(call.out.dtype),
              static_cast<long>(rows), static_cast<long>(columns), static_cast<long>(row), static_cast<long>(column), call.c.data != 0,
              call.bias.data != 0, static_cast<long>(call.activation));
  return false;
}

bool has_no_subnormal_step(int64_t activation) {
  constexpr int64_t kRows = 32, kColumns = 48;
  alignas(64) float sums[kRows * kSums + 16], out[2][kRows * kColumns];
  for (float& v : sums) v = (drawn(0, 1) ? 1.0f : -1.0f) * std::exp2f(static_cast<float>(drawn(-1000, 2000)) / 20);
  Call call{};
  call.m = kRows, call.n = kColumns, call.alpha = 1, call.activation = activation;
  for (const int flushed : {0, 1}) {
    call.out = {reinterpret_cast<int64_t>(out[flushed]), 4 * kColumns, 4, kFloat32};
    _mm_setcsr(flushed ? 0x9FC0 : 0x1F80);
    finish(call, sums, kSums, 0, kRows, 0, kColumns);
    _mm_setcsr(0x1F80);
  }
  if (!std::memcmp(out[0], out[1], sizeof out[0])) return true;
  std::printf("activation %ld has subnormal steps\n", static_cast<long>(activation));
  return false;
}

bool lanes_are_alike() {
  static Operands x;
  for (float& v : x.sums) v = number();
  for (float& v : x.bias) v = static_cast<float>(drawn(-100, 100)) / 7;
  for (char& v : x.c) v = static_cast<char>(generator() & 0x7b);  // finite in every dtype
  alignas(64) static char memory[2][kBytes];
  for (int i = 0; i < 2000; ++i)
    if (!alike(x, memory[0], memory[1])) return false;
  return true;
}

}  // namespace

int main() {
  for (const int64_t activation : {kRelu, kGelu, kGeluTanh, kSilu})
    for (int i = 0; i < 20; ++i)
      if (!has_no_subnormal_step(activation)) return 1;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return !wide || lanes_are_alike() ? 0 : 1;
}
