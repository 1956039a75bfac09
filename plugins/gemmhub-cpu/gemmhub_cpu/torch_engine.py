"""bfloat16, float16 and int8 through torch, for callers who have it in the process anyway.

Never imported for this: the probe sees it only if the caller did. Operands are viewed, not copied.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from gemmhub.backend import Array, Kernel
from gemmhub.problem import GemmProblem

_RESULTS = {("float16", "float16"), ("bfloat16", "bfloat16"), ("int8", "int32")}


def can(problem: GemmProblem) -> bool:
    """Plain two-dimensional products whose result torch makes itself, with one rounding."""
    kinds = (problem.a.dtype.name, problem.out.dtype.name)
    return (
        problem.plain
        and not problem.batch
        and problem.a.dtype == problem.b.dtype
        and kinds in _RESULTS
        and not problem.empty
        and problem.k > 0
        and min(min(x.layout.row_stride, x.layout.col_stride) for x in (problem.a, problem.b, problem.out)) > 0
    )


def _view(x: Array) -> Any:
    torch = sys.modules["torch"]
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def kernel(problem: GemmProblem) -> Kernel:
    """torch.mm (torch._int_mm for int8) into ``out``."""
    torch = sys.modules["torch"]
    multiply = torch._int_mm if problem.a.dtype == np.int8 else torch.mm

    def run(
        a: Array, b: Array, out: Array, c: Array | None, bias: Array | None, alpha: Any, beta: Any, stream: Any
    ) -> None:
        multiply(_view(a), _view(b), out=_view(out))

    return Kernel(run, f"torch {torch.__version__}, {multiply.__name__}")
