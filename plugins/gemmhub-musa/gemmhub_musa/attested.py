"""Lists the numbers of the SDK's headers that public sources state, to compare with those of an installation.

None stands for a public name without a public number. Each backend reads the installed headers, which decide, and
``gemmhub doctor musa`` shows where they differ from these lists. gemmhub-mublas uses them where there are no headers.
"""

from __future__ import annotations

from collections.abc import Mapping

RUNTIME: Mapping[str, int | None] = {
    "musaSuccess": 0,
    "musaErrorInvalidValue": 1,
    "musaErrorMemoryAllocation": 2,
    "musaErrorNoDevice": 100,
    "musaErrorInvalidDevice": 101,
    "musaErrorNotSupported": None,
    "musaErrorIllegalAddress": None,
    "musaMemcpyHostToHost": 0,
    "musaMemcpyHostToDevice": 1,
    "musaMemcpyDeviceToHost": 2,
    "musaMemcpyDeviceToDevice": 3,
    "musaMemcpyDefault": None,
    "musaDevAttrMaxThreadsPerBlock": 1,
    "musaDevAttrMaxSharedMemoryPerBlock": 8,
    "musaDevAttrWarpSize": None,
    "musaDevAttrMultiProcessorCount": 16,
    "musaDevAttrL2CacheSize": 38,
    "musaDevAttrComputeCapabilityMajor": 75,
    "musaDevAttrComputeCapabilityMinor": 76,
    "musaDevAttrMaxSharedMemoryPerMultiprocessor": 81,
    "musaStreamNonBlocking": None,
    "musaEventDisableTiming": None,
    "sizeof(musaDeviceProp)": None,
}

MUBLAS: Mapping[str, int | None] = {
    "MUBLAS_OP_N": 111,
    "MUBLAS_OP_T": 112,
    "MUBLAS_OP_C": 113,
    "MUBLAS_POINTER_MODE_HOST": 0,
    "MUBLAS_POINTER_MODE_DEVICE": 1,
    "MUBLAS_STATUS_SUCCESS": 0,
    "MUBLAS_STATUS_NOT_IMPLEMENTED": None,
    "MUBLAS_STATUS_NOT_SUPPORTED": None,
    "MUSA_R_16F": 2,
    "MUSA_R_32F": None,
    "MUSA_R_64F": None,
    "MUSA_R_16BF": None,
    "MUSA_R_8I": None,
    "MUSA_R_32I": None,
    "MUSA_R_8F_E4M3": None,
    "MUSA_R_8F_E5M2": None,
    # One public document has these numbers of computations and algorithms (of muBLAS 1.10.6).
    "MUBLAS_COMPUTE_16F": 64,
    "MUBLAS_COMPUTE_32F": 68,
    "MUBLAS_COMPUTE_64F": 70,
    "MUBLAS_COMPUTE_32I": 72,
    "MUBLAS_COMPUTE_32F_FAST_TF32": 77,
    "MUBLAS_GEMM_DEFAULT": 0,
    "MUBLAS_GEMM_DEFAULT_TENSOR_OP": 1,
    "MUBLAS_DEFAULT_MATH": None,
    "MUBLAS_MATH_MODE_DEFAULT": None,
    "MUBLAS_TENSOR_OP_MATH": None,
    "MUBLAS_TF32_TENSOR_OP_MATH": None,
    "MUBLAS_TP32_TENSOR_OP_MATH": None,
    "MUBLAS_MATH_MODE_TP32_TENSOR": None,
}

MUBLASLT: Mapping[str, int | None] = dict.fromkeys((
    "MUBLASLT_MATMUL_DESC_TRANSA", "MUBLASLT_MATMUL_DESC_TRANSB", "MUBLASLT_MATMUL_DESC_EPILOGUE",
    "MUBLASLT_MATMUL_DESC_BIAS_POINTER", "MUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE", "MUBLASLT_MATMUL_DESC_POINTER_MODE",
    "MUBLASLT_MATRIX_LAYOUT_ORDER", "MUBLASLT_MATRIX_LAYOUT_BATCH_COUNT",
    "MUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET", "MUBLASLT_ORDER_COL", "MUBLASLT_ORDER_ROW",
    "MUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES", "MUBLASLT_EPILOGUE_DEFAULT", "MUBLASLT_EPILOGUE_BIAS",
    "MUBLASLT_EPILOGUE_RELU", "MUBLASLT_EPILOGUE_RELU_BIAS", "MUBLASLT_EPILOGUE_GELU", "MUBLASLT_EPILOGUE_GELU_BIAS",
    "sizeof(mublasLtMatmulAlgo_t)", "sizeof(mublasLtMatmulHeuristicResult_t)",
))  # fmt: skip

MUDNN: Mapping[str, int | None] = dict.fromkeys((
    *(f"musa::dnn::Tensor::Type::{name}" for name in ("HALF", "BFLOAT16", "FLOAT", "DOUBLE", "INT8", "INT32")),
    "musa::dnn::MatMul::ComputeMode::SCALAR", "musa::dnn::MatMul::ComputeMode::TENSOR",
    "musa::dnn::Status::SUCCESS", "sizeof(musa::dnn::Handle)", "sizeof(musa::dnn::Tensor)",
))  # fmt: skip

MUDNN_C: Mapping[str, int | None] = dict.fromkeys((
    "MUDNN_STATUS_SUCCESS", "MUDNN_DATA_HALF", "MUDNN_DATA_BFLOAT16", "MUDNN_DATA_FLOAT", "MUDNN_DATA_DOUBLE",
    "MUDNN_TENSOR_NCHW", "MUDNN_FMA_MATH", "MUDNN_TENSOR_OP_MATH", "MUDNN_MATMULLT_EPILOGUE_DEFAULT",
))  # fmt: skip

HEADERS: tuple[tuple[str, Mapping[str, int | None]], ...] = (
    ("musa_runtime.h", RUNTIME),
    ("mublas.h", MUBLAS),
    ("mublasLt.h", MUBLASLT),
    ("mudnncxx/mudnn.h", MUDNN),
    ("mudnn.h", {**MUDNN, **MUDNN_C}),
)
"""Headers, with the names to look up in each."""
