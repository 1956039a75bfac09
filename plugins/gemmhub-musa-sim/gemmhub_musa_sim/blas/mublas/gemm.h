// The one description that every muBLAS product is turned into.
#pragma once

#include "handle.h"
#include "types.h"

namespace musa_double {

enum class Batch { single, strided, pointers };

// A matrix as it is passed: column-major with a leading dimension; `data` is an address, or an array of addresses.
struct Matrix {
  Kind kind;
  const void* data;
  int leading_dimension;
  long long stride = 0;
};

struct GemmCall {
  const char* function;
  mublasHandle_t handle;
  mublasOperation_t op_a, op_b;
  int m, n, k;
  const void* alpha;
  Matrix a, b;
  const void* beta;
  Matrix c;
  Kind scalars;
  Math math;
  Batch batch = Batch::single;
  int batch_count = 1;
};

// Checks everything, then puts the product on the handle's stream.
mublasStatus_t gemm(const GemmCall& call);

}  // namespace musa_double
