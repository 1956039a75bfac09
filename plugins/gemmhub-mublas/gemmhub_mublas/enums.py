"""The numbers of muBLAS's enumerations: from the installed header where there is one, else the few that are public.

No document states the values of all enumerations, and a wrong one is a wrong product. So each name below has the
value that public programs pass, or none. The installed ``mublas.h`` always decides; where it is missing, names without
a public value are unusable, and products that need them are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemmhub_musa.attested import MUBLAS

ATTESTED = {name: MUBLAS[name] for name in (
    "MUBLAS_OP_N", "MUBLAS_OP_T", "MUBLAS_POINTER_MODE_HOST", "MUBLAS_COMPUTE_32F", "MUBLAS_COMPUTE_64F",
    "MUBLAS_COMPUTE_32I", "MUBLAS_COMPUTE_32F_FAST_TF32", "MUBLAS_GEMM_DEFAULT", "MUBLAS_GEMM_DEFAULT_TENSOR_OP",
    "MUSA_R_16F", "MUSA_R_32F", "MUSA_R_64F", "MUSA_R_16BF", "MUSA_R_8I", "MUSA_R_32I", "MUBLAS_DEFAULT_MATH",
    "MUBLAS_MATH_MODE_DEFAULT",
)}  # fmt: skip
"""The names in use, and their public values; None where only the name is public."""

TYPE = {
    "float16": "MUSA_R_16F", "bfloat16": "MUSA_R_16BF", "float32": "MUSA_R_32F", "float64": "MUSA_R_64F",
    "int8": "MUSA_R_8I", "int32": "MUSA_R_32I",
}  # fmt: skip
"""musaDataType_t by dtype."""
COMPUTE = {"float32": "MUBLAS_COMPUTE_32F", "float64": "MUBLAS_COMPUTE_64F", "int32": "MUBLAS_COMPUTE_32I"}
"""mublasComputeType_t by gemmhub's compute dtype."""
FAST_TF32 = "MUBLAS_COMPUTE_32F_FAST_TF32"
DEFAULT_MATH = ("MUBLAS_DEFAULT_MATH", "MUBLAS_MATH_MODE_DEFAULT")
"""The math mode of full precision, under its newer and its oldest name."""


@dataclass(frozen=True)
class Codes:
    """The numbers in use. ``without_header`` is the reason why they are not the header's; None where they are."""

    values: Mapping[str, int]
    without_header: str | None = None

    @classmethod
    def of(cls, header: Mapping[str, int] | None, why_not: str = "") -> Codes:
        """Return the numbers of ``header``; the public ones where it is None, for the reason ``why_not``."""
        if header is not None:
            return cls(dict(header))
        return cls({name: value for name, value in ATTESTED.items() if value is not None}, why_not)

    def missing(self, *names: str) -> list[str]:
        """Return the ``names`` that have no number."""
        return [name for name in dict.fromkeys(names) if name not in self.values]

    def first(self, names: tuple[str, ...]) -> int | None:
        """Return the number of the first of ``names`` that has one."""
        return next((self.values[name] for name in names if name in self.values), None)

    def surprises(self) -> list[str]:
        """Sentences on names whose number in the installed header differs from the public one."""
        return [
            f"{name} is {self.values[name]} in mublas.h, {public} in public programs"
            for name, public in ATTESTED.items()
            if public is not None and self.values.get(name, public) != public
        ]
