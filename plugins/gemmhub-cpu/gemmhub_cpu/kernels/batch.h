// Products of stacks of matrices, in one call.
#pragma once

#include "gemm.h"

namespace gemmhub {

struct Axis {  // a batch dimension, with the strides of the operands along it in bytes
  int64_t size, a, b, out, c, scale_a, scale_b;
};

constexpr int kMostAxes = 64;  // NumPy's limit

struct Batch {
  Call call;  // of the first product; its workspace_bytes is the limit of the workspace, which is the thread's own
  Axis axes[kMostAxes];
  int count = 0;       // of axes
  bool folds = false;  // rows of several products may be summed as one matrix's
};

// Workspace of this thread, kept from one call to the next: page faults cost more than a small product. Null where memory is
// missing.
char* workspace_of(int64_t bytes);

// All products; the batch is changed. Returns 0, or 1 where workspace is missing.
int64_t multiply_batch(Batch* batch);

}  // namespace gemmhub
