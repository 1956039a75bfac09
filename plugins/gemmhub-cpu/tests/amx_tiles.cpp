// Micro-tiles of the int8 unit on AMX against plain sums: whole and not, from zeros and from earlier sums. The stack holds
// garbage before each, as in a process that has run for a while.
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <random>
#include <vector>

#include "unit.h"
#include "x86_64/amx.h"

extern "C" void amx_emulator_install();

namespace {

using namespace gemmhub;

__attribute__((noinline)) void dirty() {
  volatile char garbage[16384];
  for (auto& byte : garbage) byte = static_cast<char>(0xA5);
}

bool right(int64_t rows, int64_t columns, bool first) {
  constexpr int64_t kWords = 32, kStride = 40;
  std::mt19937 random(static_cast<unsigned>(rows * 64 + columns * 2 + first));
  std::vector<int8_t> a(32 * 4 * kWords), b(32 * 4 * kWords);
  for (auto& x : a) x = static_cast<int8_t>(random());
  for (auto& x : b) x = static_cast<int8_t>(random());
  std::vector<int32_t> out(32 * kStride), expected(32 * kStride);
  for (auto& x : out) x = static_cast<int32_t>(random() % 1000);
  expected = out;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      int32_t sum = first ? 0 : out[i * kStride + j];
      for (int64_t q = 0; q < 4 * kWords; ++q) {
        const int64_t word = q / 4;  // a lies in blocks of 16 rows by 16 words, b word by word
        sum += a[((word / 16 * 32 + i) * 16 + word % 16) * 4 + q % 4] * b[(word * 32 + j) * 4 + q % 4];
      }
      expected[i * kStride + j] = sum;
    }
  dirty();
  kInt8Amx.begin();
  kInt8Amx.multiply(reinterpret_cast<const uint32_t*>(a.data()), reinterpret_cast<const uint32_t*>(b.data()), kWords, nullptr,
                    first, out.data(), kStride, rows, columns);
  kInt8Amx.end();
  return out == expected;
}

// What is stored before a tile is loaded is in it, and what a tile is stored to is read after it.
__attribute__((noinline)) bool memory_is_seen(uint32_t seed) {
  alignas(64) uint32_t from[256], to[256] = {};
  configure_tiles();
  for (uint32_t i = 0; i < 256; ++i) from[i] = seed + i;
  tile_load<3>(from, 64);
  tile_store<3>(to, 64);
  release_tiles();
  bool seen = true;
  for (uint32_t i = 0; i < 256; ++i) seen = seen && to[i] == seed + i;
  return seen;
}

}  // namespace

int main(int count, char**) {
  if (syscall(SYS_arch_prctl, 0x1023, 18)) amx_emulator_install();  // as gemmhub_cpu_request_amx() in units.cpp
  if (!memory_is_seen(static_cast<uint32_t>(count) + 6)) {
    std::puts("memory is not seen");
    return 1;
  }
  for (const int64_t rows : {1, 15, 16, 17, 32})
    for (const int64_t columns : {1, 16, 31, 32})
      for (const bool first : {true, false})
        if (!right(rows, columns, first)) {
          std::printf("%ld x %ld is wrong\n", static_cast<long>(rows), static_cast<long>(columns));
          return 1;
        }
}
