// Tags, number types and statuses under MUTLASS's names.
#pragma once
#include <musa_bf16.h>
#include <musa_fp16.h>
#include <musa_runtime.h>

#include <cmath>
#include <cstring>

#include "fake/options.h"
#include "fake/tuples.hpp"

namespace mutlass {

using half_t = __half;
using bfloat16_t = __mt_bfloat16;

// Float32 values that are rounded to 11 bits when they are read.
struct tfloat32_t {
  float stored;
  explicit operator float() const {
    uint32_t bits;
    std::memcpy(&bits, &stored, 4);
    if (std::isfinite(stored)) bits = (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFFu;
    float rounded;
    std::memcpy(&rounded, &bits, 4);
    return rounded;
  }
};

enum class Status { kSuccess, kErrorMisalignedOperand, kErrorInvalidProblem, kErrorWorkspaceNull, kErrorInternal, kInvalid };

inline const char* mutlassGetStatusString(Status status) {
  switch (status) {
    case Status::kSuccess: return "Success";
    case Status::kErrorMisalignedOperand: return "Error Misaligned Operand";
    case Status::kErrorInvalidProblem: return "Error Invalid Problem";
    case Status::kErrorWorkspaceNull: return "Error Workspace Null";
    case Status::kErrorInternal: return "Error Internal";
    default: return "Invalid status";
  }
}

namespace layout {
struct RowMajor {};
struct ColumnMajor {};
}  // namespace layout

namespace arch {
struct Mp22 {};
#if FAKE_MP31
struct Mp31 {};
#endif
struct OpClassSimt {};
struct OpClassTensorOp {};
}  // namespace arch

struct KernelHardwareInfo {
  int device_id = 0;
  int sm_count = 0;
};

namespace gemm {
enum class GemmUniversalMode { kGemm, kGemmSplitKParallel, kBatched, kArray, kGrouped, kInvalid };
}
}  // namespace mutlass
