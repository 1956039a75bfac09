#include "matmul.h"

#include <algorithm>
#include <climits>

namespace musa_double {
namespace {

// What is known to be run, with its source. Quantised and 8-bit products go through other functions of muDNN.
struct TypeRow {
  Kind operands, result;
  const char* source;
};
constexpr TypeRow types[] = {
    {Kind::f16, Kind::f16, "torch_musa Matmul.cpp"},
    {Kind::f16, Kind::f32, "a published GEMM comparison on S4000"},
    {Kind::bf16, Kind::bf16, "torch_musa Matmul.cpp"},
    {Kind::f32, Kind::f32, "torch_musa Matmul.cpp"},
};

struct Extents {
  int64_t batch, rows, columns;
};

Extents extents(const TensorView& tensor) {
  const int n = tensor.ndim;
  return {n == 3 ? tensor.dims[0] : 1, tensor.dims[n - 2], tensor.dims[n - 1]};
}

// Row-major, each stride canonical: 1 for columns, at least a row for rows and a matrix for batches, and for a
// dimension of size 1 exactly what a contiguous tensor would have. A batch of 1 that is broadcast may have stride 0.
bool strides_are_canonical(const TensorView& tensor) {
  const auto [batch, rows, columns] = extents(tensor);
  const int n = tensor.ndim;
  const int64_t row_stride = tensor.strides[n - 2];
  if (tensor.strides[n - 1] != 1) return false;
  if (rows == 1 ? row_stride != columns : row_stride < columns) return false;
  if (n == 2) return true;
  const int64_t batch_stride = tensor.strides[0];
  return batch == 1 ? batch_stride == 0 || batch_stride == rows * row_stride
                    : batch_stride >= (rows - 1) * row_stride + columns;
}

Outcome check_tensor(const MatMulCall& call, const char* name, const TensorView& tensor) {
  const auto no = [&](Outcome outcome, const char* why) { return refuse(outcome, call.function, "%s: %s", name, why); };
  if (tensor.ndim == 0) return no(Outcome::invalid_parameter, "rank 0");
  if (!tensor.kind) return no(Outcome::not_supported, "its type");
  if (tensor.ndim != call.rank) return no(Outcome::invalid_parameter, "its rank");
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.dims[i] <= 0) return no(Outcome::invalid_parameter, "an empty dimension");
    if (tensor.dims[i] > INT_MAX || tensor.strides[i] > INT_MAX)
      return no(Outcome::invalid_parameter, "a size over 32 bits");
  }
  if (!strides_are_canonical(tensor)) return no(Outcome::invalid_parameter, "its strides");
  return Outcome::success;
}

Outcome check_types(const MatMulCall& call) {
  const Kind operands = *call.a.kind, result = *call.d.kind;
  const bool known = std::any_of(std::begin(types), std::end(types), [&](const TypeRow& row) {
    return row.operands == operands && row.result == result && call.b.kind == operands && call.c.kind == result;
  });
  if (!known) return refuse(Outcome::not_supported, call.function, "the types of the operands");
  if (architecture() < 22 && operands != Kind::f32)
    return refuse(Outcome::not_supported, call.function, "these types on mp_%d", architecture());
  if (architecture() < 22 && call.tensor_mode)
    return refuse(Outcome::arch_mismatch, call.function, "tensor mode on mp_%d", architecture());
  return Outcome::success;
}

Operand operand(const TensorView& tensor, bool transposed) {
  Operand result;
  result.kind = *tensor.kind;
  result.data = tensor.address;
  result.row_stride = tensor.strides[tensor.ndim - 2];
  result.column_stride = tensor.strides[tensor.ndim - 1];
  if (transposed) std::swap(result.row_stride, result.column_stride);
  result.batch_stride = tensor.ndim == 3 && tensor.dims[0] > 1 ? tensor.strides[0] : 0;
  return result;
}

// Everything but the workspace.
Outcome describe(const MatMulCall& call, Product& product) {
  if (call.device != current_device()) {
    return refuse(Outcome::invalid_parameter, call.function, "the handle is of device %d, the current device is %d",
                  call.device, current_device());
  }
  if (call.stream && !musaSimStreamAlive(call.stream))
    return refuse(Outcome::invalid_parameter, call.function, "the handle's stream was destroyed");
  const std::pair<const char*, const TensorView*> tensors[] = {
      {"a", &call.a}, {"b", &call.b}, {"c", &call.c}, {"d", &call.d}};
  for (const auto& [name, tensor] : tensors) {
    const Outcome outcome = check_tensor(call, name, *tensor);
    if (outcome != Outcome::success) return outcome;
  }
  const Outcome outcome = check_types(call);
  if (outcome != Outcome::success) return outcome;

  Extents a = extents(call.a), b = extents(call.b);
  const Extents c = extents(call.c), d = extents(call.d);
  if (call.transpose_a) std::swap(a.rows, a.columns);
  if (call.transpose_b) std::swap(b.rows, b.columns);
  const bool shapes_fit =
      a.rows == d.rows && b.columns == d.columns && a.columns == b.rows && c.rows == d.rows && c.columns == d.columns;
  const bool batches_fit =
      (a.batch == 1 || a.batch == d.batch) && (b.batch == 1 || b.batch == d.batch) && c.batch == d.batch;
  if (!shapes_fit || !batches_fit) return refuse(Outcome::invalid_parameter, call.function, "the shapes do not match");

  product.m = d.rows;
  product.n = d.columns;
  product.k = a.columns;
  product.batch = d.batch;
  product.math = Math::f32;
  if (*call.a.kind == Kind::f32 && architecture() >= 22 && (call.tensor_mode || call.allow_tf32))
    product.math = Math::tf32;
  product.a = operand(call.a, call.transpose_a);
  product.b = operand(call.b, call.transpose_b);
  product.c = operand(call.c, false);
  product.d = operand(call.d, false);
  product.alpha = Scalar::of(call.alpha);
  product.beta = Scalar::of(call.beta);
  product.gamma = Scalar::of(call.gamma);
  return Outcome::success;
}

// A vector of n, of the result's type.
Outcome add_bias(const MatMulCall& call, Product& product) {
  if (call.bias.empty()) return Outcome::success;
  if (!call.bias.address) return refuse(Outcome::invalid_parameter, call.function, "bias: no address");
  if (call.bias.kind != call.d.kind) return refuse(Outcome::not_supported, call.function, "bias: its type");
  if (call.bias.ndim != 1 || call.bias.dims[0] != product.n || call.bias.strides[0] != 1) {
    return refuse(Outcome::invalid_parameter, call.function, "bias: not a contiguous vector of n");
  }
  product.bias.kind = *call.bias.kind;
  product.bias.data = call.bias.address;
  product.bias.column_stride = 1;
  return Outcome::success;
}

size_t scratch_bytes(const Product& product) {
  constexpr int64_t line = 256;
  if (product.k < 32) return 0;
  return static_cast<size_t>((product.batch * product.m * product.n * 4 + line - 1) / line * line);
}

}  // namespace

Outcome workspace_size(const MatMulCall& call, size_t& bytes) {
  Product product;
  const Outcome outcome = describe(call, product);
  if (outcome == Outcome::success) bytes = scratch_bytes(product);
  return outcome;
}

Outcome run(const MatMulCall& call, const std::function<Scratch(size_t)>& allocate) {
  Product product;
  Outcome outcome = describe(call, product);
  if (outcome == Outcome::success) outcome = add_bias(call, product);
  if (outcome != Outcome::success) return outcome;

  Scratch scratch;
  product.workspace_bytes = scratch_bytes(product);
  if (product.workspace_bytes) {
    if (!allocate)
      return refuse(Outcome::alloc_failed, call.function, "%zu bytes of workspace, and no memory maintainer",
                    product.workspace_bytes);
    scratch = allocate(product.workspace_bytes);
    product.workspace = scratch.get();
    if (!product.workspace)
      return refuse(Outcome::alloc_failed, call.function, "the memory maintainer gave no workspace");
    if (reinterpret_cast<uintptr_t>(product.workspace) % 256)
      return refuse(Outcome::invalid_parameter, call.function, "a workspace that is not aligned to 256 bytes");
    if (!on_device(product.workspace, product.workspace_bytes))
      return refuse(Outcome::execution_failed, call.function, "a workspace outside device memory");
  }
  switch (check(product)) {
    case Verdict::fine:
      break;
    case Verdict::bad_pointer:
      return refuse(Outcome::invalid_parameter, call.function, "an operand is no device memory, or misaligned");
    case Verdict::bad_size:
      return refuse(Outcome::invalid_parameter, call.function, "an operand reaches beyond its allocation");
    case Verdict::overlap:
      return refuse(Outcome::invalid_parameter, call.function, "the result overlaps an operand, or itself");
  }
  if (enqueue(call.stream, product))
    return refuse(Outcome::execution_failed, call.function, "the stream takes no work");
  leave_sticky_error();
  return Outcome::success;
}

}  // namespace musa_double
