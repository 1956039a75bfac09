"""Proves a kernel right by one product with everything at once, compared with its error bound.

Padded rows, a batch, an addend in the result's memory, scalars and an epilogue interact, which the plain products of
:mod:`gemmhub_musa.selftest` do not show. Float32 operands may be drawn such that a product shows whether they were
rounded to fewer bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gemmhub import accuracy
from gemmhub.backend import Kernel
from gemmhub.capability import Refusal
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Operand
from gemmhub_musa import selftest
from gemmhub_musa.runtime import Runtime

BETA = 2
"""The factor of the addend."""
PAD = 16
"""Elements between the rows, and between the matrices, of a padded operand."""


def everything(
    problem: GemmProblem, m: int, n: int, k: int, *, batched: bool = True, orders: str = "row col", alignment: int = 256
) -> GemmProblem:
    """Return the dtypes and epilogue of ``problem`` with padded rows, a row-major addend in place and a batch of 2.

    ``orders`` are the storage orders of a and b; the sizes are ``m``, ``n`` and ``k``. Without ``batched`` the product
    is a single one.
    """
    batch = (2,) if batched else ()
    order_a, order_b = orders.split()

    def operand(like: Operand, rows: int, cols: int, order: str) -> Operand:
        lead = PAD + (cols if order == "row" else rows)
        steps = (lead * (rows if order == "row" else cols) + PAD,) * len(batch)
        row, col = (lead, 1) if order == "row" else (1, lead)
        return Operand(like.dtype, MatrixLayout(rows, cols, row, col, batch, steps), alignment)

    out = operand(problem.out, m, n, "row")
    bias = replace(problem.bias, axis="n", stride=1) if problem.bias else None
    return replace(
        problem.having(c=out, bias=bias), m=m, n=n, k=k, batch=batch, a=operand(problem.a, m, k, order_a),
        b=operand(problem.b, k, n, order_b), out=out, packed_by=None,
    )  # fmt: skip


class _Image:
    """An operand in host memory, laid out as on the device; NaN patterns fill the gaps between its rows."""

    def __init__(self, operand: Operand, values: Any) -> None:
        layout, size = operand.layout, operand.dtype.itemsize
        shape = (*layout.batch, layout.rows, layout.cols)
        strides = tuple(size * x for x in (*layout.batch_strides, layout.row_stride, layout.col_stride))
        nbytes = size + sum((n - 1) * s for n, s in zip(shape, strides))
        self.data = np.full(nbytes, 0xFF, np.uint8)
        self.values = np.ndarray(shape, operand.dtype, self.data.data, 0, strides)
        self.values[...] = values


def _drawn(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], exact: bool) -> Any:
    """Small whole numbers; if not ``exact``, positive ones that a rounding to 11 bits or fewer makes all smaller."""
    if exact:
        return rng.integers(-4, 5, shape).astype(dtype)
    return (1.0 + rng.integers(0, 16, shape) * 2.0**-10 + 2.0**-11 - rng.integers(1, 8, shape) * 2.0**-22).astype(dtype)


def compare(
    runtime: Runtime, problem: GemmProblem, kernel: Kernel, *, alpha: float = 1, exact: bool = True
) -> Refusal | None:
    """Run a problem of :func:`everything`; None where each element is within gemmhub's error bound.

    Else a refusal with the numbers, also where the kernel wrote outside the result. With ``alpha`` 0 the operands are
    NaN. Without ``exact`` the operands' values need all bits of float32.
    """
    rng = np.random.default_rng(7)
    a, b, out = (
        _Image(x, _drawn(rng, x.dtype, (*problem.batch, x.layout.rows, x.layout.cols), exact))
        for x in (problem.a, problem.b, problem.out)
    )
    others = {"bias": _drawn(rng, problem.bias.dtype, (problem.n,), True)} if problem.bias else {}
    if problem.activation is not None:
        # The addend brings every element to where functions differ most: a GELU by erf from one by tanh around -2.7.
        product = alpha * (a.values.astype(np.float64) @ b.values.astype(np.float64)) + others.get("bias", 0)
        out.values[...] = (rng.uniform(-4, 1, product.shape) - product) / BETA
    before, addend = out.data.copy(), out.values.copy()
    expected = accuracy.reference(
        a.values, b.values, model=accuracy.problem_model(problem), alpha=alpha, beta=BETA, c=addend,
        activation=problem.activation, out_dtype=problem.out.dtype, **others,
    )  # fmt: skip
    if alpha == 0:
        a.data[...] = 0xFF
        b.data[...] = 0xFF
    out.data[...] = selftest.run(
        kernel, runtime, problem.device.index, a.data, b.data, out.data, alpha=alpha, beta=BETA, **others
    )
    what = f"the first product with everything ({problem.key}, alpha {alpha:g}) by {kernel.description}"
    wrong = wrong_elements(expected, out.values)
    if wrong:
        return Refusal(f"{what} is wrong: {wrong}", selftest.REMEDY)
    out.values[...] = addend
    if not np.array_equal(out.data, before):
        return Refusal(f"{what} wrote outside the result", selftest.REMEDY)
    return None


def wrong_elements(expected: accuracy.Reference, got: Any) -> str:
    """Return how many elements of ``got`` are beyond their bounds, and the worst of them; empty where none is."""
    ratio = expected.ratio(got)
    wrong = int(np.count_nonzero(~(ratio <= 1.0)))
    if not wrong:
        return ""
    worst = tuple(int(i) for i in np.unravel_index(np.argmax(np.nan_to_num(ratio, nan=np.inf)), ratio.shape))
    return (
        f"{wrong} of {ratio.size} elements; element {list(worst)} is {_number(got[worst])} instead of "
        f"{_number(expected.value[worst])} (allowed error: {float(expected.bound[worst]):.3g})"
    )


def _number(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, complex) else f"{float(value):.9g}"
