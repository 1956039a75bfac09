// Random products on every unit of this CPU (AMX emulated where it is not there), from several threads, against sums in float64 or
// integers, and those of the units that add in one chain against the chain.
// Operands, results and workspaces are allocations of exactly their sizes, so that a sanitizer sees whatever is read or
// written beside them. Arguments: a seed, and the number of products of each unit and thread. It prints the units.
#include <pthread.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#ifdef __aarch64__
#include <sys/auxv.h>
#endif

#include "../gemmhub_cpu/kernels/gemm.h"
#include "../gemmhub_cpu/kernels/unit.h"

extern "C" {
int64_t gemmhub_cpu_workspace(const gemmhub::Call* call);
int64_t gemmhub_cpu_multiply(const gemmhub::Call* call);
int64_t gemmhub_cpu_packed_bytes(const gemmhub::Call* call);
void gemmhub_cpu_pack(const gemmhub::Call* call);
#ifdef __x86_64__
int64_t gemmhub_cpu_features();
int64_t gemmhub_cpu_request_amx();
void amx_emulator_install();
#endif
}

namespace {

using namespace gemmhub;

struct Chosen {
  int64_t unit;
  std::vector<int64_t> dtypes;  // of operands
};

std::vector<Chosen> units() {
  std::vector<Chosen> found;
  const std::vector<int64_t> floats = {kFloat16, kBfloat16, kFloat32, kInt8, kE4m3, kE5m2};
  const std::vector<int64_t> narrow = {kBfloat16, kInt8, kE4m3, kE5m2};
#ifdef __aarch64__
  constexpr unsigned long kDot = 1ul << 20, kI8mm = 1ul << 13, kBf16 = 1ul << 14;  // of hwcap.h
  if (getauxval(AT_HWCAP) & kDot) found.push_back({0, {kInt8}});
  if (getauxval(AT_HWCAP2) & kI8mm) found.push_back({1, {kInt8}});
  if (getauxval(AT_HWCAP2) & kBf16) found.push_back({2, narrow});
  found.push_back({3, floats});
  found.push_back({4, {kFloat64}});
#else
  if (__builtin_cpu_supports("avx512vnni")) found.push_back({0, {kInt8}});
  found.push_back({1, {kInt8}});
  found.push_back({2, {kInt8}});
  if (__builtin_cpu_supports("avx512bf16")) found.push_back({3, narrow});
  found.push_back({4, narrow});
  if (__builtin_cpu_supports("avx512bw")) found.push_back({5, floats});
  found.push_back({6, floats});
  found.push_back({7, {kInt32}});
  found.push_back({8, {kInt64}});
  if (__builtin_cpu_supports("avx512bw")) found.push_back({12, {kFloat64}});
  found.push_back({13, {kFloat64}});
  // Emulated with the other tile instructions, or not at all.
  if (gemmhub_cpu_features() & 2 || gemmhub_cpu_request_amx()) found.push_back({11, {kFloat16}});
#endif
  return found;
}

double wide(const char* at, int64_t dtype) {
  if (dtype == kInt8) return *reinterpret_cast<const int8_t*>(at);
  if (dtype == kInt32) {
    int32_t value;
    std::memcpy(&value, at, 4);
    return value;
  }
  if (dtype == kInt64) {
    int64_t value;
    std::memcpy(&value, at, 8);
    return static_cast<double>(value);
  }
  if (dtype == kFloat64) {
    double value;
    std::memcpy(&value, at, 8);
    return value;
  }
  uint32_t bits = 0;
  std::memcpy(&bits, at, size_of(dtype));
  if (dtype == kE4m3) {
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    const double value = (bits & 127) == 127 ? NAN : std::ldexp(exponent ? 8 + fraction : fraction, (exponent ? exponent : 1) - 10);
    return bits >> 7 ? -value : value;
  }
  if (dtype == kE5m2) bits <<= 8, dtype = kFloat16;
  if (dtype == kFloat16) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 31 ? (fraction ? NAN : INFINITY)
                   : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                                  : std::ldexp(fraction, -24);
    return bits >> 15 ? -value : value;
  }
  if (dtype == kBfloat16) bits <<= 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

void put_bits(char* at, int64_t dtype, uint64_t bits) { std::memcpy(at, &bits, size_of(dtype)); }

bool integral(int64_t dtype) { return dtype == kInt8 || dtype == kInt32 || dtype == kInt64; }

// A small integer, which every unit sums exactly.
void put_integer(char* at, int64_t dtype, int value) {
  if (integral(dtype)) return put_bits(at, dtype, static_cast<uint64_t>(int64_t{value}));
  if (dtype == kFloat64) {
    const double wide = value;
    std::memcpy(at, &wide, 8);
    return;
  }
  const float single = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &single, 4);
  if (dtype == kBfloat16) bits >>= 16;
  if (dtype == kE4m3) bits = (bits >> 31) << 7 | (value ? (bits >> 20 & 0x7ff) - (120u << 3) : 0);
  if (dtype == kE5m2) bits = (bits >> 31) << 7 | (value ? (bits >> 21 & 0x3ff) - (112u << 2) : 0);
  if (dtype == kFloat16) bits = (bits >> 31) << 15 | (value ? (bits >> 13 & 0x3ffff) - (112u << 10) : 0);
  put_bits(at, dtype, bits);
}

// Any integer; a float of any sign and fraction from 1/8 to 16.
void put_random(std::mt19937& random, char* at, int64_t dtype) {
  const uint32_t bits = random(), exponent = random() % 7, sign = random() & 1;
  if (integral(dtype)) return put_bits(at, dtype, uint64_t{bits} << 32 | static_cast<uint32_t>(bits * 2654435761u));
  if (dtype == kFloat64)
    return put_bits(at, dtype, uint64_t{sign} << 63 | uint64_t{1020 + exponent} << 52 | uint64_t{bits} << 20 | (random() & 0xfffff));
  if (dtype == kE4m3) return put_bits(at, dtype, sign << 7 | (4 + exponent) << 3 | (bits & 7));
  if (dtype == kE5m2) return put_bits(at, dtype, sign << 7 | (12 + exponent) << 2 | (bits & 3));
  if (dtype == kFloat16) return put_bits(at, dtype, sign << 15 | (12 + exponent) << 10 | (bits & 0x3ff));
  const uint32_t single = sign << 31 | (124 + exponent) << 23 | (bits & 0x7fffff);
  put_bits(at, dtype, dtype == kBfloat16 ? single >> 16 : single);
}

// A matrix whose rows and columns lie in any order and direction, with gaps, or, of what is only read, in one place.
struct Filled {
  std::unique_ptr<char[]> memory;
  int64_t bytes;
  Matrix matrix;

  Filled(std::mt19937& random, int64_t rows, int64_t columns, int64_t dtype, bool integers, bool read_only) {
    const int64_t size = size_of(dtype), step = size * (random() % 4 ? 1 : 3);
    const bool by_rows = random() % 2;
    int64_t row = by_rows ? step * columns : step, column = by_rows ? step : step * rows;
    if (read_only && random() % 8 == 0) (random() % 2 ? row : column) = 0;
    const int64_t down = rows > 1 ? (rows - 1) * row : 0, right = columns > 1 ? (columns - 1) * column : 0;
    bytes = rows && columns ? down + right + size : 1;
    memory.reset(new char[bytes]);
    std::memset(memory.get(), 0x7f, bytes);
    char* start = memory.get();
    if (random() % 4 == 0) start += down, row = -row;
    if (random() % 4 == 0) start += right, column = -column;
    matrix = {reinterpret_cast<int64_t>(start), row, column, dtype};
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        if (integers)
          put_integer(at(i, j), dtype, static_cast<int>(random() % 17) - 8);
        else
          put_random(random, at(i, j), dtype);
      }
  }
  char* at(int64_t i, int64_t j) const {
    return reinterpret_cast<char*>(matrix.data) + i * matrix.row_stride + j * matrix.column_stride;
  }
  double value(int64_t i, int64_t j) const { return wide(at(i, j), matrix.dtype); }

  // Whether what lies between the elements is as it was at first. It forgets the elements.
  bool gaps_are_whole(int64_t rows, int64_t columns) const {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) std::memset(at(i, j), 0x7f, size_of(matrix.dtype));
    for (int64_t i = 0; rows && columns && i < bytes; ++i)
      if (memory[i] != 0x7f) return false;
    return true;
  }
};

double rounding(int64_t dtype) {
  return dtype == kFloat16 ? 0x1p-11 : dtype == kBfloat16 ? 0x1p-8 : dtype == kFloat64 ? 0x1p-53 : 0x1p-24;
}

// The result `found` of a unit against the sums, of which `size` bounds the absolute values.
bool close(double found, double expected, double size, int64_t k, int64_t dtype, bool exactly) {
  if (dtype == kInt32) {  // wraps
    const int64_t sum = static_cast<int64_t>(expected);
    return static_cast<int32_t>(found) == static_cast<int32_t>(static_cast<uint32_t>(sum));
  }
  if (exactly) return found == expected;
  if (dtype == kFloat16 && std::fabs(expected) > 65000) return true;
  const double summed = (dtype == kFloat64 ? 0x1p-52 : 0x1p-23) * static_cast<double>(k + 6) * size;
  return std::fabs(found - expected) <= summed + rounding(dtype) * (std::fabs(expected) + summed) + 0x1p-25;
}

// The sum of `k` products in one chain of fused multiply-adds.
template <class Float>
double chain(const double* a, const double* b, int64_t k) {
  Float sum = 0;
  for (int64_t q = 0; q < k; ++q) sum = std::fma(static_cast<Float>(a[q]), static_cast<Float>(b[q]), sum);
  return sum;
}

bool same(double x, double y) { return std::isnan(x) ? std::isnan(y) : x == y && std::signbit(x) == std::signbit(y); }

// Whether a result of integers is theirs modulo 2^32 or 2^64.
bool right_exactly(const Filled& a, const Filled& b, const Filled& out, int64_t m, int64_t n, int64_t k) {
  const int64_t size = size_of(out.matrix.dtype);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      uint64_t sum = 0, x = 0, y = 0;
      for (int64_t q = 0; q < k; ++q) {
        std::memcpy(&x, a.at(i, q), size), std::memcpy(&y, b.at(q, j), size);
        sum += x * y;
      }
      if (std::memcmp(&sum, out.at(i, j), size)) {
        std::printf("integers of %ld bytes, %ld x %ld x %ld: wrong at %ld %ld\n", static_cast<long>(size),
                    static_cast<long>(m), static_cast<long>(n), static_cast<long>(k), static_cast<long>(i),
                    static_cast<long>(j));
        return false;
      }
    }
  if (!out.gaps_are_whole(m, n)) std::printf("integers are written beside the result\n");
  return out.gaps_are_whole(m, n);
}

bool right(std::mt19937& random, const Chosen& chosen) {
  const auto any = [&random](const std::vector<int64_t>& from) { return from[random() % from.size()]; };
  const auto below = [&random](int64_t most) -> int64_t { return random() % 8 ? random() % most : random() % 3; };
  int64_t m = below(150), n = below(230);
  const int64_t k = below(700);
  if (random() % 3 == 0) (random() % 2 ? m : n) = 1;  // by a vector
  const int64_t dtype = chosen.dtypes[0];
  const bool floats = !integral(dtype), exactly = random() % 3 == 0;
  const int64_t left = any(chosen.dtypes), right = any(chosen.dtypes);  // two of int8 are multiplied as integers alone
  const Filled a(random, m, k, left, exactly, true);
  const Filled b(random, k, n, floats && left == kInt8 && right == kInt8 ? dtype : right, exactly, true);
  const Word word = kUnits[chosen.unit]->word;
  const int64_t sums = dtype == kInt8 ? int64_t{kInt32} : integral(dtype) || dtype == kFloat64 ? dtype : int64_t{kFloat32};
  const bool finishes = sums == kFloat32 || dtype == kInt8, chained = word == Word::kFloat32 || word == Word::kFloat64Half;
  const std::vector<int64_t> results = {kFloat16, kBfloat16, kFloat32, sums};
  const Filled out(random, m, n, finishes && !exactly ? any(results) : sums, false, false);
  const Filled c(random, m, n, any(results), false, true), bias(random, m, n, kFloat32, false, true);
  const Filled scales(random, m, n, kFloat32, false, true);  // its first column are those of a, its first row those of b
  Call call = {};
  call.unit = chosen.unit;
  call.threads = 1 + random() % 3;
  call.m = m, call.n = n, call.k = k;
  call.a = a.matrix, call.b = b.matrix, call.out = out.matrix;
  call.alpha = 1;
  call.pinned = random() % 2;
  const bool epilogue = finishes && !exactly && out.matrix.dtype != kInt32 && random() % 2;
  if (epilogue) {
    call.alpha = std::ldexp(static_cast<double>(random() % 9) - 4, -2);
    call.activation = random() % 2 ? kRelu : kNone;
    if (random() % 2) call.c = c.matrix, call.beta = std::ldexp(static_cast<double>(random() % 8) - 3.5, -2);
    if (random() % 2)
      call.bias = {bias.matrix.data, bias.matrix.row_stride, bias.matrix.column_stride};
    if (random() % 2) call.scale_a = {scales.matrix.data, scales.matrix.row_stride, 0};
    if (random() % 2) call.scale_b = {scales.matrix.data, 0, scales.matrix.column_stride};
  }
  int64_t nan_row = -1;
  if (floats && !integral(a.matrix.dtype) && !exactly && k && m && call.alpha != 0 && a.matrix.row_stride && random() % 4 == 0) {
    nan_row = random() % m;
    put_bits(a.at(nan_row, random() % k), a.matrix.dtype, a.matrix.dtype == kFloat64   ? 0x7fffffffffffffff
                                                             : a.matrix.dtype == kFloat32 ? 0x7fffffff
                                                                                          : 0x7fff);
  }
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
  std::memset(workspace.get(), 0xff, need);  // NaN
  call.workspace = reinterpret_cast<int64_t>(workspace.get());
  call.workspace_bytes = need;
  if (gemmhub_cpu_multiply(&call)) return m == 0 || n == 0;
  if (dtype == kInt32 || dtype == kInt64) return right_exactly(a, b, out, m, n, k);
  std::vector<double> wide_a(m * k), wide_b(k * n);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t q = 0; q < k; ++q) wide_a[i * k + q] = a.value(i, q);
  for (int64_t j = 0; j < n; ++j)
    for (int64_t q = 0; q < k; ++q) wide_b[j * k + q] = b.value(q, j);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0, size = 0;
      for (int64_t q = 0; q < k; ++q) {
        const double product = wide_a[i * k + q] * wide_b[j * k + q];
        sum += product;
        size += std::fabs(product);
      }
      const double addend = call.c.data ? call.beta * c.value(i, j) : 0, vector = call.bias.data ? bias.value(i, j) : 0;
      const double scale = call.alpha * (call.scale_a.data ? scales.value(i, 0) : 1) * (call.scale_b.data ? scales.value(0, j) : 1);
      double expected = (call.alpha == 0 ? 0 : scale * sum) + addend + vector;
      if (call.activation == kRelu && !(expected > 0) && !std::isnan(expected)) expected = 0;
      size = std::fabs(scale) * size + std::fabs(addend) + std::fabs(vector);
      const double found = out.value(i, j);
      // A vector is summed in lanes unless its order is pinned.
      if (chained && (call.pinned || (m != 1 && n != 1)) && !epilogue && out.matrix.dtype == sums) {
        const double *x = wide_a.data() + i * k, *y = wide_b.data() + j * k;
        if (!same(found, sums == kFloat64 ? chain<double>(x, y, k) : chain<float>(x, y, k))) {
          std::printf("unit %ld: %ld x %ld x %ld at %ld %ld: another order\n", static_cast<long>(chosen.unit),
                      static_cast<long>(m), static_cast<long>(n), static_cast<long>(k), static_cast<long>(i),
                      static_cast<long>(j));
          return false;
        }
      }
      if (i == nan_row ? !std::isnan(found) : !close(found, expected, size, k, out.matrix.dtype, exactly)) {
        std::printf("unit %ld: %ld x %ld x %ld, dtypes %ld %ld %ld, at %ld %ld: %.9g, not %.9g\n",
                    static_cast<long>(chosen.unit), static_cast<long>(m), static_cast<long>(n), static_cast<long>(k),
                    static_cast<long>(a.matrix.dtype), static_cast<long>(b.matrix.dtype),
                    static_cast<long>(out.matrix.dtype), static_cast<long>(i), static_cast<long>(j), found, expected);
        return false;
      }
    }
  if (!out.gaps_are_whole(m, n)) std::printf("unit %ld writes beside its result\n", static_cast<long>(chosen.unit));
  return out.gaps_are_whole(m, n);
}

struct Share {
  unsigned seed;
  int count;
  bool passed;
};

void* products(void* context) {
  Share* share = static_cast<Share*>(context);
  std::mt19937 random(share->seed);
  share->passed = true;
  for (int i = 0; i < share->count; ++i)
    for (const Chosen& chosen : units()) share->passed = right(random, chosen) && share->passed;
  return nullptr;
}

}  // namespace

int main(int, char** arguments) {
#ifdef __x86_64__
  if (gemmhub_cpu_request_amx()) amx_emulator_install();
#endif
  for (const Chosen& chosen : units()) std::printf("unit %ld\n", static_cast<long>(chosen.unit));
  std::fflush(stdout);
  pthread_t threads[3];
  Share shares[3];
  for (int i = 0; i < 3; ++i) {
    shares[i] = {static_cast<unsigned>(std::atoi(arguments[1])) * 3 + i, std::atoi(arguments[2]), false};
    pthread_create(&threads[i], nullptr, products, &shares[i]);
  }
  bool passed = true;
  for (int i = 0; i < 3; ++i) {
    pthread_join(threads[i], nullptr);
    passed = passed && shares[i].passed;
  }
  return !passed;
}
