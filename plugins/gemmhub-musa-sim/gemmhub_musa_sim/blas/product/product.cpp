// Runs a product: operands are converted exactly into packed column-major copies, BLAS multiplies them, and each
// element of the result is scaled, added to and rounded once to the output type.
#include "product.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "openblas.h"

namespace musa_double {
namespace {

constexpr int illegal_address = 700, launch_failure = 719;

// The number a scalar stands for, in the type that results are scaled in.
template <class T>
T read(const Scalar& scalar) {
  const void* address = scalar.device ? scalar.device : scalar.value;
  return with_kind(scalar.kind, [&](auto element) {
    std::memcpy(&element, address, sizeof element);
    return widen<T>(element);
  });
}

// A packed column-major copy (rows by columns) of an operand of one batch.
template <class T>
std::vector<T> pack(const Operand& operand, const void* data, int64_t rows, int64_t columns) {
  std::vector<T> packed(static_cast<size_t>(rows) * columns);
  with_kind(operand.kind, [&](auto element) {
    using E = decltype(element);
    for (int64_t j = 0; j < columns; ++j) {
      const E* column = static_cast<const E*>(data) + j * operand.column_stride;
      for (int64_t i = 0; i < rows; ++i) packed[j * rows + i] = widen<T>(column[i * operand.row_stride]);
    }
  });
  if constexpr (is_complex<T>) {
    if (operand.conjugate)
      std::transform(packed.begin(), packed.end(), packed.begin(), [](T x) { return std::conj(x); });
  }
  return packed;
}

// op(A) op(B) in half precision: sums of 16 products are rounded to f16, and added up in f16.
bool accumulate_in_f16(const Product& p, const std::vector<float>& a, const std::vector<float>& b,
                       std::vector<float>& sum) {
  constexpr int64_t step = 16;
  std::vector<float> rows, part(sum.size());
  for (int64_t first = 0; first < p.k; first += step) {
    const int64_t depth = std::min(step, p.k - first);
    rows.resize(static_cast<size_t>(depth) * p.n);
    for (int64_t j = 0; j < p.n; ++j) std::copy_n(&b[j * p.k + first], depth, &rows[j * depth]);
    if (!multiply(p.m, p.n, depth, &a[first * p.m], rows.data(), part.data())) return false;
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] = f16::nearest(sum[i] + f16::nearest(part[i]));
    }
  }
  return true;
}

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x > 0 || std::isnan(x) ? x : 0;
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  }
  std::abort();  // an activation without a formula
}

// Scales, adds and stores. S is what that is done in: double, complex double, or integers that wrap.
template <class S, class T>
void finish(const Product& p, const std::vector<T>& sum, const void* c, void* d) {
  const S alpha = read<S>(p.alpha), beta = read<S>(p.beta), gamma = read<S>(p.gamma);
  const bool reads_c = beta != S(0), adds_bias = p.bias.data != nullptr;
  const auto old = reads_c ? pack<S>(p.c, c, p.m, p.n) : std::vector<S>();
  const int64_t bias_rows = p.bias.row_stride ? p.m : 1, bias_columns = p.bias.column_stride ? p.n : 1;
  const auto bias = adds_bias ? pack<S>(p.bias, p.bias.data, bias_rows, bias_columns) : std::vector<S>();
  with_kind(p.d.kind, [&](auto element) {
    using E = decltype(element);
    if constexpr (is_complex<E> == is_complex<S> && sizeof(E) > 1) {
      for (int64_t j = 0; j < p.n; ++j) {
        for (int64_t i = 0; i < p.m; ++i) {
          S value = alpha * static_cast<S>(sum[j * p.m + i]);
          if (reads_c) value += beta * old[j * p.m + i];
          if (adds_bias) value += gamma * bias[p.bias.row_stride ? i : p.bias.column_stride ? j : 0];
          E& out = static_cast<E*>(d)[i * p.d.row_stride + j * p.d.column_stride];
          if constexpr (is_complex<S>)
            out = widen<E>(value);
          else if constexpr (std::is_same_v<S, double>)
            out = narrow<E>(activate(p.activation, value));
          else
            out = narrow<E>(static_cast<int32_t>(value));
        }
      }
    }
  });
}

// T is what the multiplication is done in, S what the result is scaled in.
template <class T, class S>
bool multiply_as(const Product& p, const void* a_data, const void* b_data, const void* c_data, void* d_data) {
  auto a = pack<T>(p.a, a_data, p.m, p.k), b = pack<T>(p.b, b_data, p.k, p.n);
  std::vector<T> sum(static_cast<size_t>(p.m) * p.n);
  if constexpr (std::is_same_v<T, float>) {
    if (p.math == Math::tf32) {
      std::transform(a.begin(), a.end(), a.begin(), round_to_tf32);
      std::transform(b.begin(), b.end(), b.begin(), round_to_tf32);
    }
    if (p.math == Math::f16) {
      if (!accumulate_in_f16(p, a, b, sum)) return false;
      finish<S>(p, sum, c_data, d_data);
      return true;
    }
  }
  if (p.k && !multiply(p.m, p.n, p.k, a.data(), b.data(), sum.data())) return false;
  if constexpr (std::is_same_v<S, uint64_t>) {  // sums of products of bytes are exact in double
    finish<S>(p, std::vector<int64_t>(sum.begin(), sum.end()), c_data, d_data);
  } else {
    finish<S>(p, sum, c_data, d_data);
  }
  return true;
}

bool multiply_one(const Product& p, const void* a, const void* b, const void* c, void* d) {
  switch (p.math) {
    case Math::f16:
    case Math::f32:
    case Math::tf32:
      return multiply_as<float, double>(p, a, b, c, d);
    case Math::f64:
      return multiply_as<double, double>(p, a, b, c, d);
    case Math::i32:
      return multiply_as<double, uint64_t>(p, a, b, c, d);
    case Math::c32:
      return multiply_as<c32, c64>(p, a, b, c, d);
    case Math::c64:
      return multiply_as<c64, c64>(p, a, b, c, d);
  }
  __builtin_unreachable();
}

// Where the matrix of one batch starts: by stride, or by the array of addresses in device memory, whose entries are
// looked at only now, as a kernel would. Null for an entry that is no device address.
const void* matrix(const Operand& operand, int64_t rows, int64_t columns, int64_t batch) {
  const int64_t size = static_cast<int64_t>(size_of(operand.kind));
  if (!operand.pointers) return static_cast<const char*>(operand.data) + batch * operand.batch_stride * size;
  const void* entry = operand.pointers[batch];
  const int64_t span = ((rows - 1) * operand.row_stride + (columns - 1) * operand.column_stride + 1) * size;
  return on_device(entry, static_cast<size_t>(std::max<int64_t>(span, 0))) ? entry : nullptr;
}

void run(void* argument) {
  const std::unique_ptr<Product> product(static_cast<Product*>(argument));
  const Product& p = *product;
  if (p.workspace_bytes) std::memset(p.workspace, 0xa5, p.workspace_bytes);
  const bool reads_c = read<c64>(p.beta) != c64(0);
  for (int64_t i = 0; i < p.batch; ++i) {
    const void* a = p.k ? matrix(p.a, p.m, p.k, i) : nullptr;
    const void* b = p.k ? matrix(p.b, p.k, p.n, i) : nullptr;
    const void* c = reads_c ? matrix(p.c, p.m, p.n, i) : nullptr;
    void* d = const_cast<void*>(matrix(p.d, p.m, p.n, i));
    if ((p.k && (!a || !b)) || (reads_c && !c) || !d) return musaSimSetSticky(illegal_address);
    if (!multiply_one(p, a, b, c, d)) return musaSimSetSticky(launch_failure);
  }
}

}  // namespace

int enqueue(musaStream_t stream, const Product& product) {
  auto* own = new Product(product);
  const int error = musaSimEnqueue(stream, run, own);
  if (error) delete own;
  return error;
}

Scalar Scalar::of(double number) {
  Scalar scalar;
  scalar.kind = Kind::f64;
  std::memcpy(scalar.value, &number, sizeof number);
  return scalar;
}

Scalar Scalar::from_host(Kind kind, const void* address) {
  Scalar scalar;
  scalar.kind = kind;
  std::memcpy(scalar.value, address, size_of(kind));
  return scalar;
}

Scalar Scalar::from_device(Kind kind, const void* address) {
  Scalar scalar;
  scalar.kind = kind;
  scalar.device = address;
  return scalar;
}

}  // namespace musa_double
