"""The numbers in the simulated headers.

There are three sorts. *Attested*: a public source gives the number, and every generation has it. *Inferred*: no source
gives it, but it mirrors another library; 4.3 and 5.1 have the likely number, 3.1 another one. *Unknown*: made up, far
from CUDA's numbers and different in each generation. So code works under all generations only if it takes every number
that is not attested from the installed header.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from gemmhub_musa_sim.profiles import Profile

Enum = dict[str, int]


def _unknown(profile: Profile, enum: str, names: Sequence[str]) -> Enum:
    """Made-up numbers, the same in every run: at least 100, and in steps, so that neither order nor gaps help."""
    first = 100 + zlib.crc32(f"{profile.sdk} {enum}".encode()) % 400
    step = 7 if profile.sdk == "4.3" else 11
    ordered = names if profile.sdk == "4.3" else list(reversed(names))
    numbers = {name: first + step * place for place, name in enumerate(ordered)}
    return {name: numbers[name] for name in names}


def _inferred(profile: Profile, attested: Enum, likely: Enum) -> Enum:
    """Return the likely numbers; on 3.1 moved by 1000, so that code which relies on them fails there."""
    moved = {name: number + 1000 * (profile.sdk == "3.1") for name, number in likely.items()}
    return {**attested, **moved}


def _data_type(profile: Profile) -> Enum:
    likely = {"MUSA_R_32F": 0, "MUSA_R_64F": 1, "MUSA_R_8I": 3, "MUSA_C_32F": 4, "MUSA_C_64F": 5, "MUSA_R_8U": 8}
    likely |= {"MUSA_R_32I": 10, "MUSA_R_16BF": 14}
    if profile.sdk != "3.1":
        likely |= {"MUSA_R_8F_E4M3": 28, "MUSA_R_8F_E5M2": 29}
    return _inferred(profile, {"MUSA_R_16F": 2}, likely)


_STATUS = [
    "INVALID_HANDLE",
    "NOT_IMPLEMENTED",
    "INVALID_POINTER",
    "INVALID_SIZE",
    "MEMORY_ERROR",
    "INTERNAL_ERROR",
    "PERF_DEGRADED",
    "SIZE_QUERY_MISMATCH",
    "SIZE_INCREASED",
    "SIZE_UNCHANGED",
    "INVALID_VALUE",
    "CONTINUE",
    "CHECK_NUMERICS_FAIL",
]


def _mublas(profile: Profile) -> dict[str, Enum]:
    status = {f"MUBLAS_STATUS_{name}": number for number, name in enumerate(_STATUS, start=1)}
    compute = {"16F": 64, "32F": 68, "64F": 70, "32I": 72, "32F_FAST_TF32": 77}
    pedantic = {"16F_PEDANTIC": 65, "32F_PEDANTIC": 69, "64F_PEDANTIC": 71, "32I_PEDANTIC": 73}
    modes = {
        "3.1": ["MUBLAS_MATH_MODE_DEFAULT"],
        "4.3": ["MUBLAS_DEFAULT_MATH", "MUBLAS_TENSOR_OP_MATH"],
        "5.1": ["MUBLAS_DEFAULT_MATH", "MUBLAS_TENSOR_OP_MATH"],
    }[profile.sdk]
    return {
        "musaDataType_t": _data_type(profile),
        "mublasStatus_t": _inferred(profile, {"MUBLAS_STATUS_SUCCESS": 0}, status),
        "mublasOperation_t": {"MUBLAS_OP_N": 111, "MUBLAS_OP_T": 112, "MUBLAS_OP_C": 113},
        "mublasFillMode_t": {
            "MUBLAS_FILL_MODE_UPPER": 121,
            "MUBLAS_FILL_MODE_LOWER": 122,
            "MUBLAS_FILL_MODE_FULL": 123,
        },
        "mublasDiagType_t": {"MUBLAS_DIAG_NON_UNIT": 131, "MUBLAS_DIAG_UNIT": 132},
        "mublasSideMode_t": {"MUBLAS_SIDE_LEFT": 141, "MUBLAS_SIDE_RIGHT": 142, "MUBLAS_SIDE_BOTH": 143},
        "mublasPointerMode_t": {"MUBLAS_POINTER_MODE_HOST": 0, "MUBLAS_POINTER_MODE_DEVICE": 1},
        "mublasComputeType_t": _inferred(
            profile,
            {f"MUBLAS_COMPUTE_{name}": number for name, number in compute.items()},
            {f"MUBLAS_COMPUTE_{name}": number for name, number in pedantic.items()},
        ),
        "mublasGemmAlgo_t": {"MUBLAS_GEMM_DEFAULT": 0, "MUBLAS_GEMM_DEFAULT_TENSOR_OP": 1},
        "mublasMath_t": _unknown(profile, "mublasMath_t", [*modes, profile.tf32_math_mode]),
    }


def _mublas_lt(profile: Profile) -> dict[str, Enum]:
    """4.3 has only the names that published code compiles with; 5.1 also those which mapping tables promise."""
    full = profile.sdk == "5.1"
    names = {
        "mublasLtMatmulDescAttributes_t": [
            f"MUBLASLT_MATMUL_DESC_{name}"
            for name in ["TRANSA", "TRANSB", "EPILOGUE", "BIAS_POINTER"] + ["POINTER_MODE", "FAST_ACCUM"] * full
        ],
        "mublasLtMatrixLayoutAttribute_t": [
            f"MUBLASLT_MATRIX_LAYOUT_{name}" for name in ["ORDER"] + ["BATCH_COUNT", "STRIDED_BATCH_OFFSET"] * full
        ],
        "mublasLtMatmulPreferenceAttributes_t": ["MUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES"],
        "mublasLtOrder_t": ["MUBLASLT_ORDER_COL"] + ["MUBLASLT_ORDER_ROW"] * full,
        "mublasLtPointerMode_t": ["MUBLASLT_POINTER_MODE_HOST", "MUBLASLT_POINTER_MODE_DEVICE"],
        "mublasLtEpilogue_t": [
            f"MUBLASLT_EPILOGUE_{name}"
            for name in ["DEFAULT", "BIAS"] + ["RELU", "RELU_BIAS", "GELU", "GELU_BIAS"] * full
        ],
    }
    return {enum: _unknown(profile, enum, members) for enum, members in names.items()}


_DNN_TYPES = [
    "HALF",
    "BFLOAT16",
    "FLOAT",
    "DOUBLE",
    "BOOL",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "QINT8",
    "QINT4",
]
_DNN_STATUS = [
    "SUCCESS",
    "INVALID_PARAMETER",
    "NOT_INITIALIZED",
    "ALLOC_FAILED",
    "NOT_SUPPORTED",
    "INTERNAL_ERROR",
    "ARCH_MISMATCH",
    "EXECUTION_FAILED",
]


def _mudnn(profile: Profile) -> dict[str, Enum]:
    """``dnn_*`` for the C++ API, ``mudnn*_t`` for the C API of 5.1."""
    fp8 = [] if profile.sdk == "3.1" else ["FP8_E4M3", "FP8_E5M2"]
    epilogues = [f"MUDNN_MATMULLT_EPILOGUE_{name}" for name in ("DEFAULT", "RELU", "BIAS", "RELU_BIAS")]
    names = {
        "dnn_Status": _DNN_STATUS,
        "dnn_Type": _DNN_TYPES + fp8,
        "dnn_Format": ["UNKNOWN", "NCHW", "NHWC"],
        "dnn_ComputeMode": ["SCALAR", "TENSOR"],
        "mudnnStatus_t": [f"MUDNN_STATUS_{name}" for name in _DNN_STATUS],
        "mudnnDataType_t": [f"MUDNN_DATA_{name}".replace("BOOL", "BOOLEAN") for name in _DNN_TYPES + fp8],
        "mudnnTensorFormat_t": ["MUDNN_TENSOR_UNKNOWN", "MUDNN_TENSOR_NCHW", "MUDNN_TENSOR_NHWC"],
        "mudnnMathType_t": ["MUDNN_FMA_MATH", "MUDNN_TENSOR_OP_MATH"],
        "mudnnMatMulLtEpilogueMode_t": epilogues,
    }
    return {enum: _unknown(profile, enum, members) for enum, members in names.items()}


def enums(profile: Profile) -> dict[str, Enum]:
    """Return every enumeration of a generation's headers: its name, then its members and their numbers."""
    return {**_mublas(profile), **_mublas_lt(profile), **_mudnn(profile)}


def lt_algorithm_words(profile: Profile) -> int:
    """Return the number of 64-bit words of mublasLtMatmulAlgo_t (cuBLASLt's has 8); none is published."""
    return 11 if profile.sdk == "4.3" else 13
