"""bfloat16, float16 and int8 through torch, for callers who have it in the process anyway.

Never imported for this: the probe sees it only if the caller did. Operands are viewed, not copied.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gemmhub.backend import Array, Kernel
from gemmhub.kit.floats import DefaultMode
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Operand

_RESULTS = {("float16", "float16"), ("bfloat16", "bfloat16"), ("int8", "int32")}


def can(problem: GemmProblem) -> bool:
    """Plain two-dimensional products whose result torch makes itself, with one rounding, where it is to be.

    torch views whole, aligned elements only, and its int8 product writes to dense memory only. It does not promise
    the same bits from call to call, which integers have anyway.
    """
    kinds = (problem.a.dtype.name, problem.out.dtype.name)
    operands = (problem.a, problem.b, problem.out)
    return (
        problem.plain
        and not problem.batch
        and problem.a.dtype == problem.b.dtype
        and kinds in _RESULTS
        and not problem.empty
        and problem.k > 0
        and min(min(x.layout.row_stride, x.layout.col_stride) for x in operands) > 0
        and all(x.alignment >= x.dtype.itemsize for x in operands)
        and (kinds[0] == "int8" or not problem.deterministic)
        and (kinds[0] != "int8" or _is_dense(problem.out))
    )


def _is_dense(x: Operand) -> bool:
    """Row after row without gaps."""
    dense = MatrixLayout.contiguous(x.layout.rows, x.layout.cols)
    return x.layout.essential == dense.essential


class _Writable:
    """The memory of a read-only array, as one that may be written to.

    torch has no read-only tensors: it warns of each array that it views as one, and where warnings are errors that
    ends a product, which only reads its operands.
    """

    def __init__(self, x: Array) -> None:
        self._x = x  # keeps the memory
        self.__array_interface__ = {**x.__array_interface__, "data": (x.__array_interface__["data"][0], False)}


def _view(x: Array) -> Any:
    torch = sys.modules["torch"]
    half = x.dtype.name == "bfloat16"
    if half:
        x = x.view(np.int16)
    if not x.flags.writeable:
        x = np.asarray(_Writable(x))
    return torch.from_numpy(x).view(torch.bfloat16) if half else torch.from_numpy(x)


def kernel(problem: GemmProblem) -> Kernel:
    """torch.mm (torch._int_mm for int8) into ``out``."""
    torch = sys.modules["torch"]
    multiply = torch._int_mm if problem.a.dtype == np.int8 else torch.mm

    def run(a: Array, b: Array, out: Array, alpha: Any, beta: Any, stream: Any) -> None:
        with DefaultMode():
            multiply(_view(a), _view(b), out=_view(out))

    return Kernel(run, f"torch {torch.__version__}, {multiply.__name__}")
