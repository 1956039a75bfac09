// Random products of arrays and stacks through arrays.cpp and batch.cpp, from several threads, against sums in float64: plain
// ones, and ones with an addend that broadcasts, a bias and a packed b. Every array is an allocation of exactly its size, so
// that a sanitizer sees whatever is read or written beside it. Arguments: a seed, and the number of products of each thread.
#include <pthread.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "../gemmhub_cpu/kernels/unit.h"

using namespace gemmhub;

struct Prepared {  // of arrays.cpp
  int64_t head, unit, workspace_bytes;
  const void* dtypes[3];
  const void* none;
  int64_t a, b, out, c, bias, bias_rows, activation, folds, pinned, symmetric;
};

extern "C" {
int64_t gemmhub_cpu_product(const Prepared*, int64_t, const void*, const void*, const void*);
int64_t gemmhub_cpu_product_with(const Prepared*, int64_t, const void*, const void*, int64_t, const void*, const void*,
                                 const void*, const void*, const void*, const void*, double, double);
int64_t gemmhub_cpu_pack_array(const Prepared*, int64_t, const void*, int64_t);
int64_t gemmhub_cpu_bytes_of_packed(const Prepared*, int64_t, int64_t);
}

namespace {

#ifdef __aarch64__
constexpr int64_t kUnit = 3;
#else
constexpr int64_t kUnit = 6;
#endif
constexpr int64_t kBytes = 1 << 22;
const char kDtypeObject = 0, kNone = 0;

struct Object {  // as NumPy's, without Python's head
  int64_t data;
  int32_t count;
  const int64_t *sizes, *strides;
  const void *base, *dtype;
  int32_t flags;
};

class Bfloat16Array {
 public:
  Bfloat16Array(std::vector<int64_t> sizes, std::mt19937* random) : sizes_(sizes), strides_(sizes.size()) {
    int64_t count = 1;
    for (size_t i = sizes.size(); i--; count *= sizes[i]) strides_[i] = 2 * count;
    values_.resize(count);
    for (uint16_t& x : values_) {
      const float value = std::normal_distribution<float>()(*random);
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      x = static_cast<uint16_t>(bits >> 16);
    }
    object_ = {reinterpret_cast<int64_t>(values_.data()), static_cast<int32_t>(sizes_.size()), sizes_.data(),
               strides_.data(), nullptr, &kDtypeObject, 0x400};
  }
  Bfloat16Array(const Bfloat16Array&) = delete;

  const void* object() const { return &object_; }

  // The element at an index of the result's dimensions, to which the array broadcasts.
  double at(const std::vector<int64_t>& index) const {
    int64_t offset = 0;
    for (size_t i = 0; i < sizes_.size(); ++i)
      if (sizes_[i] > 1) offset += strides_[i] / 2 * index[index.size() - sizes_.size() + i];
    const uint32_t bits = static_cast<uint32_t>(values_[offset]) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }

 private:
  std::vector<int64_t> sizes_, strides_;
  std::vector<uint16_t> values_;
  Object object_;
};

void fail(const char* what) {
  std::printf("%s\n", what);
  std::exit(1);
}

void one(std::mt19937* random) {
  const auto draw = [random](int64_t most) { return static_cast<int64_t>((*random)() % most) + 1; };
  const int64_t batch = draw(4), m = draw(40), n = draw(60), k = draw(70);
  const bool stack_of_b = draw(2) == 1, packed = !stack_of_b && draw(2) == 1, plain = !packed && draw(3) == 1;
  const bool has_c = !plain && draw(2) == 1, has_bias = !plain && draw(2) == 1, rows = draw(2) == 1;
  const Bfloat16Array a({batch, m, k}, random), out({batch, m, n}, random);
  const Bfloat16Array b(stack_of_b ? std::vector<int64_t>{batch, k, n} : std::vector<int64_t>{k, n}, random);
  const std::vector<std::vector<int64_t>> shapes = {{batch, m, n}, {m, n}, {n}, {1, n}, {m, 1}, {batch, 1, n}};
  const Bfloat16Array c(shapes[draw(6) - 1], random);
  const Bfloat16Array bias(rows ? std::vector<int64_t>{m, 1} : std::vector<int64_t>{1, n}, random);
  Prepared p{};
  p.unit = kUnit, p.workspace_bytes = kBytes, p.none = &kNone, p.bias_rows = rows, p.folds = draw(2) == 1, p.pinned = draw(2) == 1;
  for (const void*& dtype : p.dtypes) dtype = &kDtypeObject;
  p.a = p.b = p.out = p.c = p.bias = kBfloat16;
  std::vector<char> memory;
  if (packed) {
    memory.resize(gemmhub_cpu_bytes_of_packed(&p, n, k));
    gemmhub_cpu_pack_array(&p, 2, b.object(), reinterpret_cast<int64_t>(memory.data()));
  }
  const double alpha = plain ? 1 : 0.5, beta = 2;
  const int64_t status =
      plain ? gemmhub_cpu_product(&p, 2, a.object(), b.object(), out.object())
            : gemmhub_cpu_product_with(&p, 2, a.object(), packed ? &kNone : b.object(),
                                       packed ? reinterpret_cast<int64_t>(memory.data()) : 0, out.object(),
                                       has_c ? c.object() : &kNone, has_bias ? bias.object() : &kNone, &kNone, &kNone, &kNone, alpha,
                                       beta);
  if (status) fail("a call returned a status");
  for (int64_t x = 0; x < batch; ++x)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0, size = 0;
        const auto add = [&](double term) { sum += term, size += std::fabs(term); };
        for (int64_t l = 0; l < k; ++l) add(alpha * a.at({x, i, l}) * b.at({x, l, j}));
        if (has_c) add(beta * c.at({x, i, j}));
        if (has_bias) add(bias.at({x, i, j}));
        // The rounding of the result, and those of its terms in float32.
        if (!(std::fabs(out.at({x, i, j}) - sum) <= std::ldexp(std::fabs(sum), -8) + std::ldexp(size * (k + 4), -23)))
          fail("a result is beyond its bound");
      }
  if (gemmhub_cpu_product(&p, 2, a.object(), b.object(), a.object()) == 0) fail("a result over its operand was written");
}

struct Share {
  unsigned seed;
  int count;
};

void* work(void* share) {
  const Share& mine = *static_cast<Share*>(share);
  std::mt19937 random(mine.seed);
  for (int i = 0; i < mine.count; ++i) one(&random);
  return nullptr;
}

}  // namespace

int main(int, char** words) {
  constexpr int kThreads = 3;
  pthread_t threads[kThreads];
  Share shares[kThreads];
  for (int i = 0; i < kThreads; ++i) {
    shares[i] = {static_cast<unsigned>(std::atoi(words[1]) + i), 10 * std::atoi(words[2])};
    pthread_create(&threads[i], nullptr, work, &shares[i]);
  }
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
  std::puts("arrays");
}
