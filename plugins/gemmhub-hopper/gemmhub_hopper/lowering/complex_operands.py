"""Complex64 problems as problems of float32 matrices: four real products in one, operands read in place.

With the elements of C interleaved along N, C as m x 2 n numbers is the product of A as m x 2 k numbers and of B
expanded to 2 k x 2 n: each element x + i y becomes [[x, y], [-y, x]]. The pre-pass expands B as it splits it. Where C
is interleaved along M, A is expanded. Each component is an inner product of 2 k terms, so that the bound of complex
products holds component by component; algorithms with three real products do not keep it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gemmhub.capability import Refusal
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Operand
from gemmhub_hopper.lowering import f16_planes
from gemmhub_hopper.lowering.operands import EXPANDED, INTERLEAVED, OperandAccess

DTYPE = "complex64"


def refusal(problem: GemmProblem) -> Refusal | None:
    """Return what of a complex problem there is no kernel for."""
    if problem.out.dtype.name != DTYPE:
        return Refusal(f"there is no kernel for a result of {problem.out.dtype}", "give out_dtype=complex64, or none")
    if not problem.plain:
        return Refusal("complex products have no epilogue here", "apply alpha, beta * c and the bias to the result")
    if 2 * problem.k < f16_planes.FEWEST_K:
        return Refusal(f"k is {problem.k}; complex products need {f16_planes.FEWEST_K // 2}", "use another backend")
    if problem.packed_by is not None:
        return Refusal("b is packed", "pass b itself")
    return None


def as_real(problem: GemmProblem, order: str) -> GemmProblem:
    """Return ``problem``, whose result is stored in ``order``, as one of float32 matrices.

    Strides of its a and b are those of complex elements, in floats: :func:`read` gives them their meaning.
    """
    by_rows = order == "row"
    a = _operand(problem.a, 1 if by_rows else 2, 2)
    b = _operand(problem.b, 2, 2 if by_rows else 1)
    out = _operand(problem.out, 1 if by_rows else 2, 2 if by_rows else 1)
    layout = replace(out.layout, col_stride=1) if by_rows else replace(out.layout, row_stride=1)
    m, n = (problem.m, 2 * problem.n) if by_rows else (2 * problem.m, problem.n)
    return replace(problem, m=m, n=n, k=2 * problem.k, a=a, b=b, out=replace(out, layout=layout), precision="ieee")


def read(access: OperandAccess, order: str) -> OperandAccess:
    """Return how an operand of :func:`as_real` is read, by the order of the result."""
    if (access.name == "b") == (order == "row"):
        return replace(access, source_format=EXPANDED)
    along, deep, batch = access.strides
    if deep == 2:  # contiguous along K: numbers one after the other
        return replace(access, strides=(along, 1, batch), mn_major=False)
    return replace(access, source_format=INTERLEAVED)


def _operand(operand: Operand, rows: int, cols: int) -> Operand:
    """Return an operand with so many real rows and columns for each complex one, and strides in floats."""
    layout = operand.layout
    real = MatrixLayout(
        layout.rows * rows, layout.cols * cols, 2 * layout.row_stride, 2 * layout.col_stride, layout.batch,
        tuple(2 * stride for stride in layout.batch_strides),
    )  # fmt: skip
    return replace(operand, dtype=np.dtype(np.float32), layout=real)
