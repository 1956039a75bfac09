// Rates of packing b beside memcpy, and of products of few rows, on one core: see cpu_packing.py, which compiles this.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "gemm.h"

extern "C" int64_t gemmhub_cpu_request_amx();

namespace {

using namespace gemmhub;

double now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Seconds of one call of `run`: the least of some rounds, each long enough to be timed.
template <class Run>
double seconds(const Run& run) {
  run();
  double start = now();
  run();
  const double once = now() - start;
  const int repeats = std::max(1, static_cast<int>(1e-3 / once));
  double least = 1e9;
  for (int round = 0; round < 5; ++round) {
    start = now();
    for (int i = 0; i < repeats; ++i) run();
    least = std::min(least, (now() - start) / repeats);
  }
  return least;
}

char* allocated(int64_t bytes) {
  char* const memory = static_cast<char*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
  std::memset(memory, 1, bytes);
  return memory;
}

// GB/s of the source: of memcpy, and of packing.
void pack(const char* name, int64_t unit, int64_t dtype, int64_t size, int64_t n) {
  const int64_t bytes = n * n * size;
  Call call{};
  call.unit = unit, call.threads = 1, call.n = n, call.k = n;
  char *const source = allocated(bytes), *const packed = allocated(gemmhub_cpu_packed_bytes(&call)), *const copy = allocated(bytes);
  call.packed = reinterpret_cast<int64_t>(packed);
  const auto print = [&](const char* order, double time) {
    std::printf("%s pack-%ld %s %.2f\n", name, static_cast<long>(n), order, 1e-9 * static_cast<double>(bytes) / time);
    std::fflush(stdout);
  };
  print("memcpy", seconds([&] { std::memcpy(copy, source, bytes); }));
  call.b = {reinterpret_cast<int64_t>(source), n * size, size, dtype};
  print("row-major", seconds([&] { gemmhub_cpu_pack(&call); }));
  call.b = {reinterpret_cast<int64_t>(source), size, n * size, dtype};
  print("column-major", seconds([&] { gemmhub_cpu_pack(&call); }));
  std::free(source), std::free(packed), std::free(copy);
}

// GB/s of b, of n columns and k = n, by m rows of a, or of a by so many columns.
void few(const char* name, int64_t unit, int64_t dtype, int64_t size, int64_t n) {
  const int64_t bytes = n * n * size, workspace = 1 << 24;
  char *const large = allocated(bytes), *const small = allocated(32 * n * size), *const out = allocated(32 * n * 4);
  char* const memory = allocated(workspace);
  for (const bool columns : {false, true})
    for (const int64_t m : {2, 4, 8, 16, 32}) {
      Call call{};
      call.unit = unit, call.threads = 1, call.alpha = 1;
      call.m = columns ? n : m, call.n = columns ? m : n, call.k = n;
      call.workspace = reinterpret_cast<int64_t>(memory), call.workspace_bytes = workspace;
      const int64_t result = dtype == kInt8 ? kInt32 : kFloat32;
      call.out = {reinterpret_cast<int64_t>(out), call.n * 4, 4, result};
      for (const bool along_k : {true, false}) {
        const Matrix one = {reinterpret_cast<int64_t>(large), along_k ? size : n * size, along_k ? n * size : size, dtype};
        call.b = one, call.a = {reinterpret_cast<int64_t>(small), n * size, size, dtype};
        if (columns) {
          call.a = {one.data, one.column_stride, one.row_stride, dtype};
          call.b = {reinterpret_cast<int64_t>(small), m * size, size, dtype};
        }
        const double time = seconds([&] { gemmhub_cpu_multiply(&call); });
        std::printf("%s %s-%ld %s %.2f\n", name, columns ? "columns" : "rows", static_cast<long>(m), along_k ? "along-k" : "across",
                    1e-9 * static_cast<double>(bytes) / time);
        std::fflush(stdout);
      }
    }
  std::free(large), std::free(small), std::free(out), std::free(memory);
}

}  // namespace

// Arguments: UNIT:DTYPE:BYTES of an element, each. It prints UNIT CASE ORDER and a rate.
int main(int count, char** arguments) {
  gemmhub_cpu_request_amx();
  for (int i = 1; i < count; ++i) {
    char* next = arguments[i];
    const int64_t unit = std::strtoll(next, &next, 10), dtype = std::strtoll(next + 1, &next, 10);
    const int64_t size = std::strtoll(next + 1, &next, 10);
    for (const int64_t n : {256, 1024, 2048, 4096}) pack(arguments[i], unit, dtype, size, n);
    few(arguments[i], unit, dtype, size, 4096);
  }
  return 0;
}
