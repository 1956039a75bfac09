"""The candidates for a product: functions of muBLAS with their compute type and algorithm, in order of preference.

Candidates have names such as "sgemm_strided" and "ex_tensor_op". Which of them there are depends on the dtypes, on the
library's exported functions and on the available numbers (:mod:`gemmhub_mublas.enums`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmhub.capability import Refusal
from gemmhub.dtypes import permits_tf32
from gemmhub_mublas.enums import COMPUTE, FAST_TF32, TYPE
from gemmhub_mublas.library import GEMM, Library, function_name
from gemmhub_mublas.lower import Form

_LETTER = {"float32": "S", "float64": "D", "complex64": "C", "complex128": "Z"}
"""Dtypes with functions of their own, whose operands, result and scalars all have that dtype."""

_EX_TYPES = {
    ("float16", "float16", "float16"), ("float16", "float16", "float32"),
    ("bfloat16", "bfloat16", "bfloat16"), ("bfloat16", "bfloat16", "float32"),
    ("float32", "float32", "float32"), ("float64", "float64", "float64"), ("int8", "int8", "int32"),
}  # fmt: skip
"""Operands and result of the Ex functions that public programs use; no list of all of them is public."""


@dataclass(frozen=True)
class Candidate:
    """One function with its codes, for products of ``kind``."""

    kind: str
    letter: str | None
    """None for the Ex functions."""
    compute: int = 0
    algorithm: int = 0
    label: str = ""
    """Distinguishes candidates of the same function: "tensor_op", "tf32"."""

    @property
    def batched(self) -> bool:
        """Whether it multiplies a batch in one call."""
        return self.kind != GEMM

    @property
    def function(self) -> str:
        """The function's name in the library's header."""
        return function_name(self.letter, self.kind)

    @property
    def name(self) -> str:
        """The name that users see and choose it by."""
        base = "ex" if self.letter is None else f"{self.letter.lower()}gemm"
        parts = [base, "" if self.kind == GEMM else self.kind, self.label]
        return "_".join(part for part in parts if part)

    def __str__(self) -> str:
        return f"{self.function} {self.label}".strip()


def candidates(form: Form, library: Library, kinds: tuple[str, ...]) -> list[Candidate] | Refusal:
    """Return the candidates for products like ``form``, best first; ``kinds`` of launches are in order of preference.

    A refusal names the functions or numbers that the library or its headers lack.
    """
    a, b, d, compute = form.types
    letter = _LETTER.get(a) if a == b == d == compute else None
    if letter is None and (a, b, d) not in _EX_TYPES:
        return _no_types(a, b, d)
    short = _ex(form, library)
    found: list[Candidate] = []
    for kind in kinds:
        typed = [] if letter is None else [Candidate(kind, letter)]
        ex = [] if isinstance(short, Refusal) else [Candidate(kind, None, *codes) for codes in short]
        # tf32 was allowed: its candidate comes first, then the one in full precision.
        both = ex + typed if permits_tf32(form.precision) and not isinstance(short, Refusal) else typed + ex
        found += [each for each in both if each.function in library.functions]
    if found:
        return found
    if isinstance(short, Refusal):
        return short
    return Refusal(
        f"{library.where} exports no {function_name(letter, kinds[0])} under any of its names",
        "install a newer MUSA SDK",
    )


def _no_types(a: str, b: str, d: str) -> Refusal:
    results = sorted(result for x, y, result in _EX_TYPES if (x, y) == (a, b))
    if results:
        return Refusal(f"muBLAS has no {a} by {b} with a result of {d}", f"give out_dtype= one of {', '.join(results)}")
    return Refusal(f"muBLAS has no product of {a} by {b}", "convert the operands to one dtype, float32 for example")


def _ex(form: Form, library: Library) -> list[tuple[int, int, str]] | Refusal:
    """Return (compute type, algorithm, label) of the Ex functions, best first."""
    a, b, d, compute = form.types
    if (a, b, d) not in _EX_TYPES:
        return _no_types(a, b, d)
    codes = library.codes
    missing = codes.missing(TYPE[a], TYPE[b], TYPE[d], COMPUTE[compute], "MUBLAS_GEMM_DEFAULT")
    if missing:
        reason = (
            f"the installed mublas.h has no {', '.join(missing)}"
            if codes.without_header is None
            else f"the number of {', '.join(missing)} is not public, and {codes.without_header}"
        )
        return Refusal(reason, "install the MUSA SDK's headers and a C++ compiler, and set MUSA_HOME")
    full, default = codes.values[COMPUTE[compute]], codes.values["MUBLAS_GEMM_DEFAULT"]
    tensor_op = codes.values.get("MUBLAS_GEMM_DEFAULT_TENSOR_OP")
    found: list[tuple[int, int, str]] = []
    if compute == "float32" and a == "float32" and permits_tf32(form.precision) and FAST_TF32 in codes.values:
        found.append((codes.values[FAST_TF32], default, "tf32"))
    found.append((full, default, ""))
    # For float32 tensor units would mean tf32, which has its own compute type.
    if tensor_op is not None and a in ("float16", "bfloat16", "int8"):
        found.append((full, tensor_op, "tensor_op"))
    return found
