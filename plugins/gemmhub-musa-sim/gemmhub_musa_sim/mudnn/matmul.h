// The matrix product of muDNN, behind both of its APIs: row-major tensors, checked strictly, run on a stream.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "product.h"

namespace musa_double {

enum class Outcome {
  success,
  invalid_parameter,
  not_initialized,
  alloc_failed,
  not_supported,
  internal_error,
  arch_mismatch,
  execution_failed
};

struct TensorView {
  const void* address = nullptr;
  int ndim = 0;
  int64_t dims[8] = {}, strides[8] = {};
  std::optional<Kind> kind;  // none for types that no product takes

  bool empty() const { return ndim == 0 && !address; }
};

struct MatMulCall {
  const char* function;
  int device = 0;
  musaStream_t stream = nullptr;
  int rank = 2;  // of every tensor
  bool tensor_mode = false, allow_tf32 = true;
  bool transpose_a = false, transpose_b = false;
  double alpha = 1, beta = 0, gamma = 1;
  TensorView a, b, c, d, bias;
};

using Scratch = std::unique_ptr<void, std::function<void(void*)>>;

// Scratch memory that a product needs: some for every k from 32 up.
Outcome workspace_size(const MatMulCall& call, size_t& bytes);

// d = alpha op(a) op(b) + beta c + gamma bias. `allocate` is asked for the scratch memory, if any is needed; without
// it such a product is refused.
Outcome run(const MatMulCall& call, const std::function<Scratch(size_t)>& allocate);

}  // namespace musa_double
