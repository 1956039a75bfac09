// The self-check of the kernels, run in a process of its own before any other process runs them:
//
//   self_check LIBRARY UNIT:PAIR[:amx]...
//
// It loads the library, multiplies random operands on each unit in turn, compares the results with sums in float64 or
// integers, and writes a line for each unit: its number, and "right", "wrong" or "refused" (the system refuses the
// registers of AMX). A fault or a hang ends the process after the lines of the units before. PAIR is "int8", "int32",
// "int64", "bfloat16", "float16", "float" or "float64". It exits with 2 where the library cannot be loaded.
#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "../kernels/gemm.h"
#include "../kernels/unit.h"

namespace {

using namespace gemmhub;

using Function = int64_t (*)(const Call*);
Function multiply, packed_bytes, pack;
int64_t (*request_amx)();

constexpr int64_t kWorkspace = 1 << 21;
char memory[kWorkspace];
uint64_t state;

uint32_t random_bits() {  // splitmix64, by Steele, Lea and Flood
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
}

// Bits of the fraction of a floating-point dtype.
int fraction_bits(int64_t dtype) { return dtype == kFloat16 ? 10 : dtype == kBfloat16 ? 7 : dtype == kFloat64 ? 52 : 23; }

// Writes a random element, all bits of whose fraction may be set, and returns its value.
double draw(char* at, int64_t dtype) {
  const uint32_t bits = random_bits();
  if (dtype == kInt8) {
    *at = static_cast<char>(bits);
    return static_cast<int8_t>(bits);
  }
  if (dtype == kE4m3) {  // with subnormal numbers, without NaN
    const int exponent = bits >> 3 & 15, fraction = exponent == 15 ? bits & 6 : bits & 7;
    *at = static_cast<char>((bits & 0x80) | exponent << 3 | fraction);
    const double size = std::ldexp(exponent ? 8 + fraction : fraction, (exponent ? exponent : 1) - 10);
    return bits & 0x80 ? -size : size;
  }
  if (dtype == kE5m2) {
    const int exponent = (bits >> 2 & 31) % 31, fraction = bits & 3;
    *at = static_cast<char>((bits & 0x80) | exponent << 2 | fraction);
    const double size = std::ldexp(exponent ? 4 + fraction : fraction, (exponent ? exponent : 1) - 17);
    return bits & 0x80 ? -size : size;
  }
  const int wide = fraction_bits(dtype), exponent = static_cast<int>(bits >> 24 & 7) - 5;
  const uint64_t random = static_cast<uint64_t>(random_bits()) << 32 | (wide > 32 ? random_bits() : 0);
  const uint64_t fraction = random >> (64 - wide), sign = bits >> 31;
  // The value as a float64, whose fraction has 52 bits: ldexp takes longer than the products.
  const uint64_t float64 = sign << 63 | static_cast<uint64_t>(exponent + 1023) << 52 | fraction << (52 - wide);
  const int bias = dtype == kFloat16 ? 15 : 127, width = dtype == kFloat16 ? 5 : 8;
  const uint64_t word =
      dtype == kFloat64 ? float64 : sign << (wide + width) | static_cast<uint64_t>(exponent + bias) << wide | fraction;
  std::memcpy(at, &word, size_of(dtype));
  double value;
  std::memcpy(&value, &float64, 8);
  return value;
}

double value_of(const char* at, int64_t dtype) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, size_of(dtype));
  if (dtype == kInt32) return static_cast<int32_t>(bits);
  if (dtype == kFloat64) {
    double value;
    std::memcpy(&value, &bits, 8);
    return value;
  }
  uint32_t word = static_cast<uint32_t>(bits);
  if (dtype == kFloat16) {
    const int exponent = word >> 10 & 31, fraction = word & 1023;
    const double size = exponent == 31 ? INFINITY : std::ldexp(exponent ? 1024 + fraction : fraction, (exponent ? exponent : 1) - 25);
    return word >> 15 ? -size : size;
  }
  if (dtype == kBfloat16) word <<= 16;
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}

struct Operand {
  Operand(int64_t rows, int64_t columns, int64_t dtype, bool by_columns)
      : values(static_cast<double*>(std::malloc(8 * rows * columns))),
        data(static_cast<char*>(std::malloc(size_of(dtype) * rows * columns))),
        matrix{reinterpret_cast<int64_t>(data), size_of(dtype) * (by_columns ? 1 : columns),
               size_of(dtype) * (by_columns ? rows : 1), dtype} {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        values[i * columns + j] = draw(data + i * matrix.row_stride + j * matrix.column_stride, dtype);
  }
  ~Operand() {
    std::free(values);
    std::free(data);
  }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  double* const values;  // row by row
  char* const data;
  const Matrix matrix;
};

struct Sizes {
  int64_t m, n, k;
};

// A product, its b packed in the call or before it, with everything that finish() does and the order of a pinned one where
// `epilogue` is set: a vector is then summed otherwise.
bool right(int64_t unit, Sizes s, int64_t a_dtype, int64_t b_dtype, int64_t out_dtype, bool packed, bool epilogue) {
  const bool by_columns = packed || s.k % 64 == 0;  // whole lines: few rows are multiplied by b where it lies
  const Operand a(s.m, s.k, a_dtype, false), b(s.k, s.n, b_dtype, by_columns), c(s.m, s.n, epilogue ? out_dtype : kFloat16, false);
  const Operand scale_a(s.m, 1, kFloat32, false), scale_b(1, s.n, kFloat32, false);
  char* const out = static_cast<char*>(std::malloc(size_of(out_dtype) * s.m * s.n));
  std::memset(memory, 0xff, kWorkspace);
  Call call{};
  call.unit = unit;
  call.threads = 2;
  call.m = s.m;
  call.n = s.n;
  call.k = s.k;
  call.a = a.matrix;
  call.b = b.matrix;
  call.out = {reinterpret_cast<int64_t>(out), size_of(out_dtype) * s.n, size_of(out_dtype), out_dtype};
  call.workspace = reinterpret_cast<int64_t>(memory);
  call.workspace_bytes = kWorkspace;
  call.alpha = 1;
  if (epilogue) {
    call.c = c.matrix;
    call.scale_a = {scale_a.matrix.data, 4, 0};
    call.scale_b = {scale_b.matrix.data, 0, 4};
    call.activation = kRelu;
    call.alpha = 0.5;
    call.beta = -0.25;
    call.pinned = 1;
  }
  if (packed) {
    call.packed = reinterpret_cast<int64_t>(std::malloc(packed_bytes(&call)));
    pack(&call);
    call.b = {};
  }
  bool fine = multiply(&call) == 0;
  for (int64_t i = 0; fine && i < s.m; ++i) {
    double sums[128] = {}, sizes[128] = {};
    for (int64_t q = 0; q < s.k; ++q)
      for (int64_t j = 0; j < s.n; ++j) {
        const double product = a.values[i * s.k + q] * b.values[q * s.n + j];
        sums[j] += product;
        sizes[j] += std::fabs(product);
      }
    for (int64_t j = 0; j < s.n; ++j) {
      const double got = value_of(out + size_of(out_dtype) * (i * s.n + j), out_dtype);
      double exact = sums[j], bound = 0;
      if (out_dtype != kInt32) {  // integers are exact
        if (epilogue) {
          const double addend = call.beta * c.values[i * s.n + j];
          const double scale = call.alpha * scale_a.values[i] * scale_b.values[j];
          sizes[j] = std::fabs(scale) * sizes[j] + std::fabs(addend);
          exact = std::fmax(0, scale * exact + addend);
        }
        bound = std::ldexp((s.k + 4) * sizes[j], out_dtype == kFloat64 ? -52 : -23) + std::ldexp(std::fabs(exact), -fraction_bits(out_dtype));
      }
      fine = fine && std::fabs(got - exact) <= bound;
    }
  }
  if (packed) std::free(reinterpret_cast<void*>(call.packed));
  std::free(out);
  return fine;
}

// A product of random integers, modulo 2^32 or 2^64.
bool right_exactly(int64_t unit, Sizes s, int64_t dtype, bool packed) {
  const int64_t size = size_of(dtype);
  const auto drawn = [size](int64_t count) {
    char* const data = static_cast<char*>(std::malloc(size * count));
    for (int64_t i = 0; i < size * count; ++i) data[i] = static_cast<char>(random_bits());
    return data;
  };
  char *const a = drawn(s.m * s.k), *const b = drawn(s.k * s.n), *const out = drawn(s.m * s.n);
  Call call{};
  call.unit = unit, call.threads = 2;
  call.m = s.m, call.n = s.n, call.k = s.k;
  call.a = {reinterpret_cast<int64_t>(a), size * s.k, size, dtype};
  call.b = {reinterpret_cast<int64_t>(b), size * (packed ? 1 : s.n), size * (packed ? s.k : 1), dtype};
  call.out = {reinterpret_cast<int64_t>(out), size * s.n, size, dtype};
  call.workspace = reinterpret_cast<int64_t>(memory), call.workspace_bytes = kWorkspace;
  call.alpha = 1;
  const Matrix matrix = call.b;
  if (packed) {
    call.packed = reinterpret_cast<int64_t>(std::malloc(packed_bytes(&call)));
    pack(&call);
    call.b = {};
  }
  bool fine = multiply(&call) == 0;
  for (int64_t i = 0; i < s.m; ++i)
    for (int64_t j = 0; j < s.n; ++j) {
      uint64_t sum = 0, x = 0, y = 0;
      for (int64_t q = 0; q < s.k; ++q) {
        std::memcpy(&x, a + size * (i * s.k + q), size);
        std::memcpy(&y, b + q * matrix.row_stride + j * matrix.column_stride, size);
        sum += x * y;
      }
      fine = fine && !std::memcmp(&sum, out + size * (i * s.n + j), size);
    }
  if (packed) std::free(reinterpret_cast<void*>(call.packed));
  std::free(a), std::free(b), std::free(out);
  return fine;
}

// Products that end within a tile, a block of k and a word, b packed by the tasks and before them; one row and one column;
// few rows by whole lines of b, and few columns.
constexpr Sizes kSizes[] = {{9, 29, 1131}, {131, 50, 37}, {1, 101, 333}, {101, 1, 333}, {5, 45, 320}, {70, 3, 64}};

bool right(int64_t unit, const char* pair) {
  bool fine = true;
  if (!std::strcmp(pair, "int8")) {
    for (const Sizes& sizes : kSizes)
      for (int packed = 0; packed < 2; ++packed) {
        fine = fine && right(unit, sizes, kInt8, kInt8, kInt32, packed, false);
        if (sizes.m * sizes.k < 5000) fine = fine && right(unit, sizes, kInt8, kInt8, kBfloat16, packed, true);
      }
    return fine;
  }
  for (const auto& [name, exact] : {std::pair<const char*, int64_t>{"int32", kInt32}, {"int64", kInt64}}) {
    if (std::strcmp(pair, name)) continue;
    for (const Sizes& sizes : kSizes)
      for (int packed = 0; packed < 2; ++packed) fine = fine && right_exactly(unit, sizes, exact, packed);
    return fine;
  }
  if (!std::strcmp(pair, "float64")) {
    for (const Sizes& sizes : kSizes)
      for (int packed = sizes.k > 1000; packed < 2; ++packed)  // one long product takes long enough
        fine = fine && right(unit, sizes, kFloat64, kFloat64, kFloat64, packed, false);
    return fine;
  }
  const int64_t dtype = std::strcmp(pair, "bfloat16") ? kFloat16 : kBfloat16;
  for (const Sizes& sizes : kSizes)
    for (int packed = 0; packed < 2; ++packed) {
      fine = fine && right(unit, sizes, dtype, dtype, kFloat32, packed, false);
      if (sizes.k > 1000) continue;  // one long product takes long enough
      fine = fine && right(unit, sizes, dtype, dtype, dtype, packed, true);
      if (sizes.k < 64 && std::strcmp(pair, "float16"))  // by either operand, decoded as b is packed, and a
        fine = fine && (packed ? right(unit, sizes, kE4m3, kE5m2, kFloat32, packed, true)
                               : right(unit, sizes, dtype, kInt8, kFloat32, packed, true));
      if (std::strcmp(pair, "float")) continue;
      fine = fine && (packed ? right(unit, sizes, kBfloat16, kFloat32, kBfloat16, packed, true)
                             : right(unit, sizes, kFloat32, kFloat32, kFloat32, packed, false));
    }
  return fine;
}

const char* verdict(char* argument) {
  char* const pair = std::strchr(argument, ':') + 1;
  char* const option = std::strchr(pair, ':');
  if (option) {
    *option = 0;
    if (!request_amx || request_amx()) return "refused";
  }
  return right(std::atoll(argument), pair) ? "right" : "wrong";
}

}  // namespace

int main(int count, char** arguments) {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  prctl(PR_SET_DUMPABLE, 0);  // a fault here is an answer: no crash report
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  state = static_cast<uint64_t>(now.tv_sec) * 1000000007 + static_cast<uint64_t>(now.tv_nsec);
  void* const library = count > 1 ? dlopen(arguments[1], RTLD_NOW) : nullptr;
  if (library) {
    multiply = reinterpret_cast<Function>(dlsym(library, "gemmhub_cpu_multiply"));
    packed_bytes = reinterpret_cast<Function>(dlsym(library, "gemmhub_cpu_packed_bytes"));
    pack = reinterpret_cast<Function>(dlsym(library, "gemmhub_cpu_pack"));
    request_amx = reinterpret_cast<int64_t (*)()>(dlsym(library, "gemmhub_cpu_request_amx"));
  }
  if (!library || !multiply || !packed_bytes || !pack) {
    std::printf("%s\n", count > 1 ? dlerror() : "usage: self_check LIBRARY UNIT:PAIR[:amx]...");
    return 2;
  }
  for (int i = 2; i < count; ++i) {
    const long long unit = std::atoll(arguments[i]);
    std::printf("%lld %s\n", unit, verdict(arguments[i]));
    std::fflush(stdout);
  }
  return 0;
}
