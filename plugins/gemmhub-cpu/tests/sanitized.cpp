// Random products on every unit of this CPU (AMX as a model), from several threads, against sums in a plain loop. Operands
// and workspaces are allocations of exactly their sizes, so that a sanitizer sees whatever is read or written beside them.
#include <pthread.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "../gemmhub_cpu/kernels/gemm.h"
#include "../gemmhub_cpu/kernels/unit.h"

extern "C" {
int64_t gemmhub_cpu_workspace(const gemmhub::Call* call);
int64_t gemmhub_cpu_multiply(const gemmhub::Call* call);
int64_t gemmhub_cpu_packed_bytes(const gemmhub::Call* call);
void gemmhub_cpu_pack(const gemmhub::Call* call);
}

namespace {

using namespace gemmhub;

struct Chosen {
  int64_t unit, dtype;
};

float wide(const char* at, int64_t dtype) {
  if (dtype == kInt8) return static_cast<float>(*reinterpret_cast<const int8_t*>(at));
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  const uint32_t moved = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &moved, 4);
  return value;
}

// An operand of small integers, which every unit sums exactly; its rows and columns lie as `order` says.
struct Filled {
  std::unique_ptr<char[]> memory;
  Matrix matrix;

  Filled(std::mt19937& random, int64_t rows, int64_t columns, int64_t dtype) {
    const int64_t size = dtype == kInt8 ? 1 : 2, gap = random() % 3 == 0 ? 3 : 1;
    const bool by_rows = random() % 2;
    const int64_t step = size * gap;
    const int64_t row = by_rows ? step * columns : step, column = by_rows ? step : step * rows;
    const int64_t bytes = rows && columns ? (rows - 1) * row + (columns - 1) * column + size : 1;
    memory.reset(new char[bytes]);
    std::memset(memory.get(), 0x7f, bytes);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        const int value = static_cast<int>(random() % 17) - 8;
        char* at = memory.get() + i * row + j * column;
        if (dtype == kInt8) {
          *at = static_cast<char>(value);
        } else {
          const float single = static_cast<float>(value);
          uint32_t bits;
          std::memcpy(&bits, &single, 4);
          const uint16_t high = static_cast<uint16_t>(bits >> 16);
          std::memcpy(at, &high, 2);
        }
      }
    matrix = {reinterpret_cast<int64_t>(memory.get()), row, column, dtype};
  }
};

bool right(std::mt19937& random, Chosen chosen) {
  const int64_t m = random() % 150, n = random() % 230, k = random() % 700;
  const bool integers = chosen.dtype == kInt8;
  const Filled a(random, m, k, chosen.dtype), b(random, k, n, chosen.dtype);
  Call call = {};
  call.unit = chosen.unit;
  call.threads = 1 + random() % 3;
  call.m = m, call.n = n, call.k = k;
  call.a = a.matrix, call.b = b.matrix;
  call.alpha = 1;
  std::unique_ptr<char[]> out(new char[4 * m * n + 1]);
  const bool by_columns = random() % 3 == 0;
  call.out = {reinterpret_cast<int64_t>(out.get()), by_columns ? 4 : 4 * n, by_columns ? 4 * m : 4,
              integers ? kInt32 : kFloat32};
  std::unique_ptr<char[]> packed;
  if (random() % 3 == 0) {
    packed.reset(new char[gemmhub_cpu_packed_bytes(&call) + 1]);
    call.packed = reinterpret_cast<int64_t>(packed.get());
    gemmhub_cpu_pack(&call);
  }
  call.workspace_bytes = random() % 2 ? 1 << 24 : 1 << 20;
  const int64_t need = gemmhub_cpu_workspace(&call);
  if (!need) return call.workspace_bytes < 1 << 24;
  std::unique_ptr<char[]> workspace(new char[need]);
  call.workspace = reinterpret_cast<int64_t>(workspace.get());
  call.workspace_bytes = need;
  if (gemmhub_cpu_multiply(&call)) return m == 0 || n == 0;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t q = 0; q < k; ++q)
        sum += wide(reinterpret_cast<char*>(a.matrix.data) + i * a.matrix.row_stride + q * a.matrix.column_stride,
                    chosen.dtype) *
               wide(reinterpret_cast<char*>(b.matrix.data) + q * b.matrix.row_stride + j * b.matrix.column_stride,
                    chosen.dtype);
      const char* at = out.get() + i * call.out.row_stride + j * call.out.column_stride;
      float found;
      int32_t whole;
      std::memcpy(&found, at, 4);
      std::memcpy(&whole, at, 4);
      if ((integers ? static_cast<float>(whole) : found) != sum) {
        std::printf("unit %ld: %ld x %ld x %ld\n", chosen.unit, m, n, k);
        return false;
      }
    }
  return true;
}

struct Share {
  unsigned seed;
  bool passed;
};

void* products(void* context) {
  Share* share = static_cast<Share*>(context);
  std::mt19937 random(share->seed);
  std::vector<Chosen> units = {{1, kInt8}, {2, kInt8}, {4, kBfloat16}, {6, kBfloat16}};
  if (__builtin_cpu_supports("avx512vnni")) units.push_back({0, kInt8});
  if (__builtin_cpu_supports("avx512bf16")) units.push_back({3, kBfloat16});
  if (__builtin_cpu_supports("avx512bw")) units.push_back({5, kBfloat16});
  share->passed = true;
  for (int i = 0; i < 4; ++i)
    for (const Chosen& chosen : units) share->passed = right(random, chosen) && share->passed;
  return nullptr;
}

}  // namespace

int main(int, char** arguments) {
  pthread_t threads[3];
  Share shares[3];
  for (int i = 0; i < 3; ++i) {
    shares[i] = {static_cast<unsigned>(std::atoi(arguments[1])) * 3 + i, false};
    pthread_create(&threads[i], nullptr, products, &shares[i]);
  }
  bool passed = true;
  for (int i = 0; i < 3; ++i) {
    pthread_join(threads[i], nullptr);
    passed = passed && shares[i].passed;
  }
  return !passed;
}
