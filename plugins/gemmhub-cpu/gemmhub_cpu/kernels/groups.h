// Products of groups of unequal sizes, in one call.
#pragma once

#include "gemm.h"

namespace gemmhub {

// How an operand is cut: by the ends of the groups in its rows or columns, or one matrix for each group.
struct Cut {
  bool divided;
  int64_t step;  // bytes from one row (column) to the next, or from one matrix to the next
};

struct Groups {
  Call call;             // of all rows and columns; its workspace_bytes is the limit of the workspace, which is the thread's own
  int64_t Call::* size;  // the size that the ends divide
  Cut a, b, out;
  const int64_t* ends;
  int64_t count;
};

// All products. Returns 0, or 1 with nothing written where workspace is missing.
int64_t multiply_groups(const Groups& groups);

}  // namespace gemmhub
