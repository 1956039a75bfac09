#include "gemm.h"

#include <algorithm>

namespace musa_double {
namespace {

bool is_operation(mublasOperation_t op) { return op == MUBLAS_OP_N || op == MUBLAS_OP_T || op == MUBLAS_OP_C; }

// op(X), with the strides of a column-major X.
Operand operand(const Matrix& matrix, mublasOperation_t op, Batch batch) {
  Operand result;
  result.kind = matrix.kind;
  (batch == Batch::pointers ? reinterpret_cast<const void*&>(result.pointers) : result.data) = matrix.data;
  result.row_stride = op == MUBLAS_OP_N ? 1 : matrix.leading_dimension;
  result.column_stride = op == MUBLAS_OP_N ? matrix.leading_dimension : 1;
  result.batch_stride = batch == Batch::strided ? matrix.stride : 0;
  result.conjugate = op == MUBLAS_OP_C;
  return result;
}

// alpha or beta: in host memory and copied now, or in device memory and read when the work runs.
bool scalar(const Handle& handle, Kind kind, const void* address, Scalar& result) {
  const bool in_device = musaSimExtent(address) >= size_of(kind);
  if (!address || in_device != (handle.pointer_mode == MUBLAS_POINTER_MODE_DEVICE)) return false;
  result = in_device ? Scalar::from_device(kind, address) : Scalar::from_host(kind, address);
  return true;
}

mublasStatus_t status_of(const char* function, Verdict verdict) {
  switch (verdict) {
    case Verdict::fine:
      return MUBLAS_STATUS_SUCCESS;
    case Verdict::bad_pointer:
      return refuse(MUBLAS_STATUS_INVALID_POINTER, function, "an operand is no device memory, or misaligned");
    case Verdict::bad_size:
      return refuse(MUBLAS_STATUS_INVALID_SIZE, function, "an operand reaches beyond its allocation");
    case Verdict::overlap:
      return refuse(MUBLAS_STATUS_INVALID_VALUE, function, "the result overlaps an operand, or itself");
  }
  __builtin_unreachable();
}

}  // namespace

mublasStatus_t gemm(const GemmCall& call) {
  const auto no = [&](mublasStatus_t status, const char* what, long long given) {
    return refuse(status, call.function, "%s: %lld", what, given);
  };
  Handle handle;
  const mublasStatus_t found = look_up(call.function, call.handle, handle);
  if (found != MUBLAS_STATUS_SUCCESS) return found;
  if (!is_operation(call.op_a)) return no(MUBLAS_STATUS_INVALID_VALUE, "opA", call.op_a);
  if (!is_operation(call.op_b)) return no(MUBLAS_STATUS_INVALID_VALUE, "opB", call.op_b);
  if (call.m < 0) return no(MUBLAS_STATUS_INVALID_SIZE, "m", call.m);
  if (call.n < 0) return no(MUBLAS_STATUS_INVALID_SIZE, "n", call.n);
  if (call.k < 0) return no(MUBLAS_STATUS_INVALID_SIZE, "k", call.k);
  if (call.batch_count < 0) return no(MUBLAS_STATUS_INVALID_SIZE, "batchCount", call.batch_count);
  const int a_rows = call.op_a == MUBLAS_OP_N ? call.m : call.k, b_rows = call.op_b == MUBLAS_OP_N ? call.k : call.n;
  if (call.a.leading_dimension < std::max(1, a_rows))
    return no(MUBLAS_STATUS_INVALID_SIZE, "lda", call.a.leading_dimension);
  if (call.b.leading_dimension < std::max(1, b_rows))
    return no(MUBLAS_STATUS_INVALID_SIZE, "ldb", call.b.leading_dimension);
  if (call.c.leading_dimension < std::max(1, call.m))
    return no(MUBLAS_STATUS_INVALID_SIZE, "ldc", call.c.leading_dimension);
  if (call.batch == Batch::strided) {
    for (const Matrix* matrix : {&call.a, &call.b, &call.c}) {
      if (matrix->stride < 0) return no(MUBLAS_STATUS_INVALID_SIZE, "stride", matrix->stride);
    }
  }
  if (call.m == 0 || call.n == 0 || call.batch_count == 0) return MUBLAS_STATUS_SUCCESS;

  Product product;
  product.m = call.m;
  product.n = call.n;
  product.k = call.k;
  product.batch = call.batch_count;
  product.math = call.math;
  const bool tf32_mode = handle.math_mode == MUSA_SIM_TF32_MATH && call.math == Math::f32 && call.a.kind == Kind::f32;
  if (tf32_mode) product.math = Math::tf32;
  if (!scalar(handle, call.scalars, call.alpha, product.alpha) ||
      !scalar(handle, call.scalars, call.beta, product.beta)) {
    return refuse(MUBLAS_STATUS_INVALID_POINTER, call.function, "alpha or beta is not where the pointer mode says");
  }
  product.a = operand(call.a, call.op_a, call.batch);
  product.b = operand(call.b, call.op_b, call.batch);
  product.c = product.d = operand(call.c, MUBLAS_OP_N, call.batch);
  const mublasStatus_t checked = status_of(call.function, check(product));
  if (checked != MUBLAS_STATUS_SUCCESS) return checked;
  if (enqueue(handle.stream, product))
    return refuse(MUBLAS_STATUS_INTERNAL_ERROR, call.function, "the stream takes no work");
  leave_sticky_error();
  return MUBLAS_STATUS_SUCCESS;
}

}  // namespace musa_double
