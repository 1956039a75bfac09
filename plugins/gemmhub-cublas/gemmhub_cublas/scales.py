"""The scaling modes of cuBLASLt for float8 operands: which of them a problem's quantization scales are.

A mode fixes the number of factors and their layout, which is no parameter of the call: those of VEC128 are contiguous
along m or n, those of blocks of 128 x 128 along k, padded to multiples of 4. Nothing is copied: other strides are
refused.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gemmhub.capability import Refusal
from gemmhub.operands import Scale, blocks
from gemmhub.problem import GemmProblem

SCALAR, OUTER, VEC128, BLOCK128 = 0, 3, 4, 5
"""cublasLtMatmulMatrixScale_t: one factor; one for each row of A or column of B; one for each of those and each 128
elements of k; one for each block of 128 x 128."""
PAIRS = ((SCALAR, SCALAR), (OUTER, OUTER), (VEC128, BLOCK128), (BLOCK128, VEC128), (VEC128, VEC128))
"""The modes of a and b that the library documents together, the preferred ones first."""
ALIGNMENT = 16
"""Bytes to which the addresses of the factors of blocks must be aligned."""
SCALAR_CAPABILITY, OTHERS_CAPABILITY = (8, 9), (9, 0)
"""The least compute capability for one factor, and the only one for the other modes."""
OTHERS_VERSION = (12, 9)
"""The cuBLASLt that first has the other modes."""
_MULTIPLE = 4
"""The library's M and N must be multiples of it with factors of blocks."""


class Scaling(NamedTuple):
    """The quantization scales of one call of the library: its modes for A and B, and what it has for a float8 D."""

    a: int | None = None
    """The mode of A's factors; None for none."""
    b: int | None = None
    """The mode of B's factors; None for none."""
    result: bool = False
    """Whether D is multiplied by a factor."""
    amax: bool = False
    """Whether the largest magnitude of D before that factor is written."""

    @property
    def in_blocks(self) -> bool:
        """Whether factors differ along k."""
        return {VEC128, BLOCK128} & {self.a, self.b} != set()

    @property
    def of_result(self) -> Scaling:
        """The same without factors of A and B."""
        return Scaling(None, None, self.result, self.amax)


def check_types(problem: GemmProblem) -> Refusal | None:
    """Return a refusal of scales for dtypes that the library does not scale."""
    factors = [name for name in ("scale_a", "scale_b") if name in problem.operands]
    of_result = [name for name in ("scale_out", "amax") if name in problem.operands]
    narrow = [x.dtype.name.startswith("float8") for x in (problem.a, problem.b, problem.out)]
    if factors and not all(narrow[:2]):
        a, b = problem.a.dtype, problem.b.dtype
        int8 = ", and gives int8 products in int32 alone" * (a == b == np.int8)
        return Refusal(
            f"{factors[0]}= for {a} by {b}: cuBLASLt scales float8 operands only{int8}",
            "quantize to float8, or scale the product",
        )
    if of_result and not narrow[2]:
        return Refusal(
            f"{of_result[0]}= for a result of {problem.out.dtype}: cuBLASLt has it for float8 results only",
            "leave it out, and compute it from the result",
        )
    if "amax" in of_result and problem.empty:
        return Refusal("amax= of a result without elements: cuBLASLt is not called then", "leave amax= out")
    return None


def scaling(problem: GemmProblem, swapped: bool) -> Scaling | Refusal | None:
    """Return the scaling of ``problem``, whose b is the library's A where ``swapped``; None where it has none.

    A float8 result has one, be it without factors. The refusals are those of granularities and strides.
    """
    scale_a, scale_b = problem.operands.get("scale_a"), problem.operands.get("scale_b")
    narrow = problem.out.dtype.itemsize == 1
    if scale_a is scale_b is None and not narrow:
        return None
    sides = (scale_a, problem.m), (scale_b, problem.n)
    fitting = [_modes(scale, size, problem.k) for scale, size in sides]
    pairs = [(x, y) for x, y in PAIRS if x in fitting[0] and y in fitting[1]]
    if not pairs:
        return _unpaired(scale_a, scale_b)
    if narrow and pairs[0] != PAIRS[0]:
        return Refusal(
            f"a result of {problem.out.dtype} with scales of rows, columns or blocks: cuBLASLt has them for results of "
            "16 and 32 bits only",
            "give out_dtype='bfloat16', or pass one factor for each operand",
        )
    if problem.batch_count > 1 and pairs[0] != PAIRS[0]:
        return Refusal(
            "cuBLASLt documents scales of rows, columns and blocks for single products only, not for batches",
            "pass one factor for each operand, or matrices of two dimensions",
        )
    laid = [[_dense(*side, mode, problem.k) for side, mode in zip(sides, pair)] for pair in pairs]
    if [True, True] not in laid:
        at = laid[0].index(False)
        scale, size = sides[at]
        assert scale is not None
        return _strided(("scale_a", "scale_b")[at], scale, size, pairs[0][at], problem.k)
    dense = pairs[laid.index([True, True])]
    a, b = (None if scale is None else mode for scale, mode in zip((scale_a, scale_b), dense))
    if {VEC128, BLOCK128} & {a, b} and (problem.m % _MULTIPLE or problem.n % _MULTIPLE):
        return Refusal(
            f"{problem.m} rows and {problem.n} columns: with scales of blocks cuBLASLt takes multiples of {_MULTIPLE}",
            f"pad the operands to multiples of {_MULTIPLE}",
        )
    if swapped:
        a, b = b, a
    return Scaling(a, b, "scale_out" in problem.operands, "amax" in problem.operands)


def unsupported(found: Scaling, capability: tuple[int, int], version: str) -> Refusal | None:
    """Return a refusal of a scaling that this compute capability, or this version of the library, does not have."""
    words = ".".join(map(str, capability))
    if found.a in (None, SCALAR) and found.b in (None, SCALAR):
        if capability >= SCALAR_CAPABILITY:
            return None
        return Refusal(f"compute capability {words}: cuBLASLt scales float8 from 8.9 on", "use bfloat16 operands")
    if capability != OTHERS_CAPABILITY:
        return Refusal(
            f"cuBLASLt scales rows, columns and blocks on compute capability 9.0 only; this card has {words}",
            "pass one factor for each operand",
        )
    if tuple(map(int, version.split(".")[:2])) < OTHERS_VERSION:
        return Refusal(
            f"cuBLASLt {version} has one factor for each operand: scales of rows, columns and blocks came with 12.9",
            'install cuBLAS of CUDA 12.9 or later ("gemmhub-cublas[cu13]"), or pass one factor for each operand',
        )
    return None


def _modes(scale: Scale | None, size: int, k: int) -> frozenset[int]:
    """Return the modes that have this number of factors for an operand of ``size`` rows or columns."""
    if scale is None:
        return frozenset({SCALAR})
    along = {None: 1, "n blocks": blocks(size)}.get(scale.axis, size)
    counts = along, blocks(k) if scale.depth else 1
    wanted = {SCALAR: (1, 1), OUTER: (size, 1), VEC128: (size, blocks(k)), BLOCK128: (blocks(size), blocks(k))}
    return frozenset(mode for mode, count in wanted.items() if count == counts)


def _dense(scale: Scale | None, size: int, mode: int, k: int) -> bool:
    """Return whether the factors lie in memory as ``mode`` reads them. The stride of a single factor means nothing."""
    if scale is None or mode == SCALAR:
        return True
    own, depth = strides(mode, size, k)
    along, deep = blocks(size) if mode == BLOCK128 else size, 1 if mode == OUTER else blocks(k)
    return (along == 1 or scale.stride == own) and (deep == 1 or scale.depth_stride == depth)


def strides(mode: int, size: int, k: int) -> tuple[int, int]:
    """Return the strides along the operand's own dimension and along k that the library reads factors by.

    ``mode`` is not SCALAR. The padding of BLOCK128 may be read; it ends with the 16 bytes of the last factor.
    """
    return {OUTER: (1, 0), VEC128: (1, size), BLOCK128: (-(-blocks(k) // 4) * 4, 1)}[mode]


def _unpaired(scale_a: Scale | None, scale_b: Scale | None) -> Refusal:
    forms = [x.form if x else "none" for x in (scale_a, scale_b)]
    missing = [name for name, x in (("scale_a", scale_a), ("scale_b", scale_b)) if x is None]
    remedy = f"pass {missing[0]}= of ones, of the other's granularity" if missing else "quantize one of them anew"
    return Refusal(
        f"scales of the granularities {forms[0]!r} (a) and {forms[1]!r} (b): cuBLASLt has tensor with tensor, row with "
        "column, and 1x128 or 128x128 of the one with 1x128 of the other",
        remedy,
    )


def _strided(name: str, scale: Scale, size: int, mode: int, k: int) -> Refusal:
    """Return the refusal of the strides of the factors ``name``."""
    own, deep, own_stride = name[-1].replace("a", "m").replace("b", "n"), blocks(k), strides(mode, size, k)[0]
    stored, read = {
        OUTER: ("contiguous", "a contiguous copy"),
        VEC128: (
            f"contiguous along {own}, {size} elements apart along k",
            f"{name} of a row-major ({deep}, {size}) array" + (", transposed" if name == "scale_a" else ""),
        ),
        BLOCK128: (
            f"contiguous along k, {own_stride} elements apart along {own}",
            f"{name} of the first {deep} columns of a row-major ({blocks(size)}, {own_stride}) array"
            + (", transposed" if name == "scale_b" else ""),
        ),
    }[mode]
    return Refusal(
        f"{name} has strides of {scale.stride} elements along {own} and {scale.depth_stride} along k: cuBLASLt reads "
        f"factors that are {stored}",
        f"pass {read}",
    )
