"""Check of a backend's packed forms of b."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gemmhub import dtypes
from gemmhub.backend import Backend
from gemmhub.capability import Refusal
from gemmhub.errors import DTypeError
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Operand
from gemmhub.testing.answers import call, honest, offered, prepared, require
from gemmhub.testing.operands import Operands
from gemmhub.testing.results import Outcome, run_once


def check_packed(backend: Backend, operands: Operands) -> Outcome:
    """Check ``pack``: its copy serves any m, and each call returns a new one."""
    case, typical = operands.case, typical_of(operands.problem)
    typical_offer = offered(backend, typical)
    if isinstance(typical_offer, Refusal):
        return Outcome(typical_offer)
    operands.fill(case.seed)
    old = operands.b.values.copy()
    first = call("pack()", backend.pack, operands.b.array, typical)
    if isinstance(first, Refusal):
        honest(first, "pack()")
        return Outcome(first)
    require(bool(np.array_equal(operands.b.read()[1], operands.b.image)), "pack() changed b")
    worst = 0.0
    for m in dict.fromkeys((case.m, 1, 2 * case.m + 3)):
        other = Operands(replace(case, m=m), operands.memory)
        other.fill(case.seed + m, b=old)
        outcome = _multiply_packed(backend, other, first, typical, f"packed b, m={m}")
        if not outcome.accepted:
            return outcome
        worst = max(worst, outcome.worst)
    operands.fill(case.seed + 1)  # rewrites b in place
    new = operands.b.values.copy()
    other = Operands(case, operands.memory)
    other.fill(case.seed + 2, b=old)
    label = "packed b, after the array it was made from was rewritten"
    worst = max(worst, _multiply_packed(backend, other, first, typical, label).worst)
    second = call("pack()", backend.pack, operands.b.array, typical)
    other.fill(case.seed + 2, b=new)
    label = "b packed again after it was rewritten"
    worst = max(worst, _multiply_packed(backend, other, second, typical, label).worst)
    return Outcome(worst=worst)


def typical_of(problem: GemmProblem) -> GemmProblem:
    """The product that ``gemmhub.pack()`` describes to :meth:`Backend.pack`, whatever the products are that follow.

    It has the natural result, no epilogue and no batch.
    """
    a, b = problem.a.dtype, problem.b.dtype
    try:
        out = dtypes.result_dtype(a, b)
    except DTypeError:  # fp8
        out = np.dtype(np.float32)

    def dense(dtype: dtypes.DType, rows: int, cols: int) -> Operand:
        return Operand(dtype, MatrixLayout.contiguous(rows, cols), dtype.itemsize)

    right = dense(b, problem.k, problem.n)
    if problem.device.type != "cpu":  # kernels get addresses: the problem has the strides
        right = replace(problem.b, layout=replace(problem.b.layout, batch=(), batch_strides=()))
    return GemmProblem(
        m=problem.m, n=problem.n, k=problem.k, a=dense(a, problem.m, problem.k), b=right,
        out=dense(out, problem.m, problem.n), compute_dtype=dtypes.compute_dtype(a, b, out), device=problem.device,
    )  # fmt: skip


def packed_by(backend: Backend, problem: GemmProblem) -> GemmProblem:
    """The problem with a b that ``backend`` packed."""
    layout = MatrixLayout.contiguous(problem.k, problem.n)
    layout = replace(layout, batch=problem.batch, batch_strides=(0,) * len(problem.batch))
    return replace(problem, b=replace(problem.b, layout=layout), packed_by=backend.name)


def _multiply_packed(backend: Backend, operands: Operands, packed: object, typical: GemmProblem, label: str) -> Outcome:
    """Multiply by a packed b. Only products unlike the ``typical`` one, which b was packed for, may be refused."""
    problem = packed_by(backend, operands.problem)
    offer = offered(backend, problem)
    if isinstance(offer, Refusal):
        result_dtypes = [(x.out.dtype, x.compute_dtype) for x in (problem, typical)]
        like = problem.plain and not problem.pinned and result_dtypes[0] == result_dtypes[1]
        require(not like, f"{label}: pack() returned a packed form, but offer() refuses to use it: {offer!r}")
        return Outcome(offer)
    kernel = prepared(backend, problem, offer.first.name, offer.workspace)
    return Outcome(worst=run_once(operands, kernel, label, packed))
