// Which types of operands, result and computation muBLAS multiplies. Nothing wider than what is known to be run: a
// combination without a source is refused, as a real library may.
#pragma once

#include <optional>

#include "handle.h"
#include "kind_of.h"

namespace musa_double {

struct GemmType {
  musaDataType_t operands, result;
  mublasComputeType_t compute;
  Kind scalars;
  Math math;
  int lowest_architecture;
  const char* source;
};

constexpr int any = 0, mp_22 = 22;

// f16 and bf16 products are missing on mp_21 (S80, S3000): ggml-org/llama.cpp pull request 13149.
constexpr GemmType gemm_types[] = {
    {MUSA_R_16F, MUSA_R_16F, MUBLAS_COMPUTE_16F, Kind::f16, Math::f16, mp_22, "InfiniTensor/InfiniCore gemm_mublas.mu"},
    {MUSA_R_16F, MUSA_R_16F, MUBLAS_COMPUTE_32F, Kind::f32, Math::f32, mp_22, "onnxruntime-musa blas_utils.h"},
    {MUSA_R_16F, MUSA_R_32F, MUBLAS_COMPUTE_32F, Kind::f32, Math::f32, mp_22, "a published GEMM comparison on S4000"},
    {MUSA_R_16BF, MUSA_R_16BF, MUBLAS_COMPUTE_32F, Kind::f32, Math::f32, mp_22,
     "InfiniTensor/InfiniCore, onnxruntime-musa"},
    {MUSA_R_16BF, MUSA_R_32F, MUBLAS_COMPUTE_32F, Kind::f32, Math::f32, mp_22, "the router product of a vLLM port"},
    {MUSA_R_32F, MUSA_R_32F, MUBLAS_COMPUTE_32F, Kind::f32, Math::f32, any,
     "onnxruntime-musa, InfiniTensor/InfiniCore"},
    {MUSA_R_32F, MUSA_R_32F, MUBLAS_COMPUTE_32F_FAST_TF32, Kind::f32, Math::tf32, mp_22,
     "onnxruntime-musa, InfiniTensor/InfiniCore"},
    {MUSA_R_64F, MUSA_R_64F, MUBLAS_COMPUTE_64F, Kind::f64, Math::f64, any, "onnxruntime-musa blas_utils.h"},
    {MUSA_R_8I, MUSA_R_32I, MUBLAS_COMPUTE_32I, Kind::i32, Math::i32, mp_22, "FlagPerf, case of mthreads"},
};

inline std::optional<GemmType> gemm_type(musaDataType_t a, musaDataType_t b, musaDataType_t c,
                                         mublasComputeType_t compute) {
  for (const GemmType& row : gemm_types) {
    if (row.operands == a && row.operands == b && row.result == c && row.compute == compute) return row;
  }
  return std::nullopt;
}

}  // namespace musa_double
