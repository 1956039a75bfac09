"""Checks what muBLASLt takes: dtypes, epilogues, and the names in its header that a form needs."""

from __future__ import annotations

from collections.abc import Iterator

from gemmhub.capability import Refusal
from gemmhub.dtypes import permits_tf32
from gemmhub.problem import GemmProblem
from gemmhub_mublas.enums import COMPUTE, FAST_TF32
from gemmhub_mublas.lower import Form

TYPE = {
    "float16": "MUSA_R_16F", "bfloat16": "MUSA_R_16BF", "float32": "MUSA_R_32F", "float64": "MUSA_R_64F",
    "int8": "MUSA_R_8I", "int32": "MUSA_R_32I", "float8_e4m3fn": "MUSA_R_8F_E4M3", "float8_e5m2": "MUSA_R_8F_E5M2",
}  # fmt: skip
"""musaDataType_t by dtype. The glue numbers them in this order."""
COMPUTES = (*COMPUTE.values(), FAST_TF32)
"""mublasComputeType_t; the glue numbers them in this order."""
EPILOGUES = (
    "MUBLASLT_EPILOGUE_DEFAULT", "MUBLASLT_EPILOGUE_BIAS", "MUBLASLT_EPILOGUE_RELU", "MUBLASLT_EPILOGUE_RELU_BIAS",
    "MUBLASLT_EPILOGUE_GELU", "MUBLASLT_EPILOGUE_GELU_BIAS",
)  # fmt: skip
"""mublasLtEpilogue_t; the glue numbers them in this order. The first one is never set, so it may be missing."""
_EPILOGUE = {None: 0, "relu": 2, "gelu_tanh": 4}
"""The epilogue of each activation; with a bias, the next one. Nothing public tells whether MUBLASLT_EPILOGUE_GELU is by
tanh, as CUBLASLT_EPILOGUE_GELU is, or by erf: where the proof of a card shows erf, it is refused."""
ACTIVATIONS = frozenset(name for name in _EPILOGUE if name)
"""Names of the activations that the library has."""
BIAS_POINTER = "MUBLASLT_MATMUL_DESC_BIAS_POINTER"
EPILOGUE_ATTRIBUTE = "MUBLASLT_MATMUL_DESC_EPILOGUE"
BATCH = ("MUBLASLT_MATRIX_LAYOUT_BATCH_COUNT", "MUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET")
ALIGNMENTS = tuple(f"MUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{x}_BYTES" for x in "ABCD")

NEEDED = (
    "MUBLAS_OP_N", "MUBLAS_OP_T", "MUBLASLT_MATMUL_DESC_TRANSA", "MUBLASLT_MATMUL_DESC_TRANSB",
    "MUBLASLT_MATRIX_LAYOUT_ORDER", "MUBLASLT_ORDER_COL", "MUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES",
)  # fmt: skip
"""Names without which there is no product."""
OPTIONAL = (*TYPE.values(), *COMPUTES, *EPILOGUES[1:], BIAS_POINTER, EPILOGUE_ATTRIBUTE, *BATCH, *ALIGNMENTS)
"""Names that some headers have; the glue is compiled with those that this one has."""

_RESULTS = {
    ("float16", "float16"): ("float16", "float32"),
    ("bfloat16", "bfloat16"): ("bfloat16", "float32"),
    ("float32", "float32"): ("float32",),
    ("float64", "float64"): ("float64",),
    ("int8", "int8"): ("int32",),
    ("float8_e4m3fn", "float8_e4m3fn"): ("float16", "bfloat16"),
}
"""Result dtypes to try for each pair of operands; the first product shows whether the card has them."""


def epilogue(form: Form) -> int:
    """Return the index of the form's epilogue in :data:`EPILOGUES`."""
    return _EPILOGUE[form.activation] + (form.bias is not None)


def compute(form: Form, has: frozenset[str]) -> str:
    """Return the form's compute type: tf32 only where it was allowed, and the header has it."""
    reduced = permits_tf32(form.precision) and form.types[:2] == ("float32", "float32") and FAST_TF32 in has
    return FAST_TF32 if reduced else COMPUTE[form.compute]


def check_types(problem: GemmProblem) -> Refusal | None:
    """Return a refusal for dtypes and epilogues that no version of the library has."""
    a, b, out = (x.dtype.name for x in (problem.a, problem.b, problem.out))
    results = _RESULTS.get((a, b))
    if results is None:
        return Refusal(
            f"muBLASLt has no product of {a} by {b}", "convert the operands to one dtype, float32 for example"
        )
    if out not in results:
        return Refusal(
            f"muBLASLt has no {a} by {b} with a result of {out}", f"give out_dtype= one of {', '.join(results)}"
        )
    if problem.bias is None and problem.activation is None:
        return None
    if problem.compute_dtype.name != "float32":
        return Refusal(
            f"muBLASLt has no bias or activation for products accumulated in {problem.compute_dtype}",
            "add a bias as c= (broadcast to the result's shape by a copy), apply an activation afterwards",
        )
    if problem.bias is not None and problem.bias.dtype != problem.out.dtype:
        return Refusal(
            f"the bias is {problem.bias.dtype}: muBLASLt adds only a bias of the result's dtype",
            f"convert the bias to {out}",
        )
    if problem.bias is not None and problem.bias.stride != 1:
        return Refusal(
            f"the bias has a stride of {problem.bias.stride} elements: muBLASLt takes contiguous ones",
            "pass a contiguous copy of the bias",
        )
    return None


def check_form(form: Form) -> Refusal | None:
    """Return a refusal for 8-bit operands that are not contiguous along K, the only form that public programs use."""
    if form.a.itemsize == 1 and (form.k > 0 and (not form.trans_a or form.trans_b)):
        return Refusal(
            f"muBLASLt's {form.a.dtype} products are verified for operands that are contiguous along K only",
            "pass a row-major and b as the transpose of a contiguous (n, k) array",
        )
    return None


def check_names(form: Form, has: frozenset[str]) -> Refusal | None:
    """Return a refusal where the form needs names that the installed header, with the names ``has``, lacks."""
    missing = [name for name in _names(form, has) if name not in has]
    if not missing:
        return None
    remedy = "use another backend, or install a newer MUSA SDK"
    if form.bias or form.activation:
        remedy = "add the bias as c= or afterwards, apply the activation afterwards; or install a newer MUSA SDK"
    return Refusal(f"the installed mublasLt.h has no {', '.join(missing)}", remedy)


def _names(form: Form, has: frozenset[str]) -> Iterator[str]:
    yield from dict.fromkeys(TYPE[x.dtype] for x in (form.a, form.b, form.d))
    yield compute(form, has)
    if form.compute not in (form.a.dtype, form.d.dtype):
        yield TYPE[form.compute]  # the type of the scalars
    if epilogue(form):
        yield from (EPILOGUES[epilogue(form)], EPILOGUE_ATTRIBUTE)
    if form.bias:
        yield BIAS_POINTER
    if form.count > 1:
        yield from BATCH
