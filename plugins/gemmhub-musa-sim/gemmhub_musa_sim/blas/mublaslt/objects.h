// muBLASLt's handles, descriptors, layouts and preferences. Each is known by its address, which is never read or given
// out twice, so that a use after destroy, a double destroy and a mix-up of sorts are all found.
#pragma once

#pragma GCC visibility push(default)
#include <mublasLt.h>
#pragma GCC visibility pop

#include <optional>

#include "product.h"

namespace musa_double {

struct LtHandle {
  int device;
};

struct LtDescriptor {
  mublasComputeType_t compute;
  musaDataType_t scale;
  mublasOperation_t op_a = MUBLAS_OP_N, op_b = MUBLAS_OP_N;
  mublasLtEpilogue_t epilogue = MUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  bool scalars_in_device_memory = false;
  int8_t fast_accumulation = 0;
};

struct LtLayout {
  musaDataType_t type;
  uint64_t rows, columns;
  int64_t leading_dimension;
  mublasLtOrder_t order = MUBLASLT_ORDER_COL;
  int32_t batch_count = 1;
  int64_t batch_offset = 0;
};

struct LtPreference {
  uint64_t workspace_bytes = 0;
};

std::optional<LtHandle> find(mublasLtHandle_t handle);
std::optional<LtDescriptor> find(mublasLtMatmulDesc_t descriptor);
std::optional<LtLayout> find(mublasLtMatrixLayout_t layout);
std::optional<LtPreference> find(mublasLtMatmulPreference_t preference);

}  // namespace musa_double
