"""Check of one case on one backend against the contract, without pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Barrier
from typing import Any, TypeVar

import numpy as np

from gemmhub.backend import Backend, DirectEpilogue, Kernel, Offer
from gemmhub.capability import Refusal
from gemmhub.epilogues import EPILOGUES
from gemmhub.operands import OPERANDS
from gemmhub.problem import GemmProblem
from gemmhub.testing.answers import call, first_kernel, offered, prepared, require
from gemmhub.testing.case import Case
from gemmhub.testing.host_groups import check_host_groups
from gemmhub.testing.memory import HOST, Memory
from gemmhub.testing.operands import Operands, dense
from gemmhub.testing.packing import check_packed
from gemmhub.testing.results import Outcome, compare, run_once, verify
from gemmhub.testing.rows import check_rows

Array = Any
T = TypeVar("T")

_ROUNDS = 4


def check(backend: Backend, case: Case, memory: Memory = HOST) -> Outcome:
    """Check ``backend`` (already probed) against its contract on ``case``.

    Raises AssertionError with the case, the worst element, its error and the likely mistake. A case that the
    backend refuses with a reason and a remedy passes.
    """
    with _named(case):
        operands = Operands(case, memory)
        problem = operands.problem
        offer = offered(backend, problem)
        if isinstance(offer, Refusal):
            return Outcome(offer)
        if case.packed:
            return check_packed(backend, operands)
        kernels = list(_kernels(backend, offer, case, problem))
        worst = 0.0
        for name, kernel in kernels:
            if not problem.empty:  # gemmhub itself never runs a kernel for an empty result
                worst = max(worst, _run(operands, kernel, name))
            # gemmhub passes only NumPy arrays to direct.
            if kernel.direct is not None and problem.plain and memory.device.type == "cpu":
                operands.fill(case.seed)
                _direct(operands, kernel.direct)
            if kernel.direct_epilogue is not None and memory.device.type == "cpu":
                operands.fill(case.seed)
                direct = call("direct_epilogue()", kernel.direct_epilogue, problem.m * problem.n * problem.batch_count)
                worst = max(worst, 0.0 if direct is None else _direct_epilogue(operands, direct))
            if kernel.any_size and case.seed % 3 == 0:  # a third is enough, and as many again would double the time
                worst = max(worst, _other_sizes(operands, kernel, name))
            worst = max(worst, _other_rows(operands, kernel, name))
            if kernel.any_size and case.seed % 3 == 0 and memory.device.type == "cpu":
                operands.fill(case.seed)
                check_host_groups(operands, kernel, name)
        if problem.empty:
            return Outcome()
        if case.reproducible:
            _repeats(backend, operands, kernels[0][1])
        if problem.pinned:
            check_rows(backend, case, memory)
        if case.every_candidate and problem.plain:
            _orders(operands, offer, dict(kernels))
        if case.threads > 1:
            worst = max(worst, _threads(operands, kernels[0][1]))
        return Outcome(worst=worst)


@contextmanager
def _named(case: Case) -> Iterator[None]:
    """Put the case, as an expression that repeats it, in front of the message of a failure."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{case!r}\n  {error}") from error.__cause__


def _kernels(backend: Backend, offer: Offer, case: Case, problem: GemmProblem) -> Iterator[tuple[str, Kernel]]:
    """Yield the kernel of the first candidate, or of all; and that of the dense problem where layouts do not matter."""
    names = offer.names
    for name in names if case.every_candidate else names[:1]:
        yield name, prepared(backend, problem, name, offer.workspace)
    if not backend.layout_sensitive:
        yield f"{names[0]} of dense operands", first_kernel(backend, dense(problem))


def _orders(operands: Operands, offer: Offer, kernels: Mapping[str, Kernel]) -> None:
    """Require equal bits of candidates that state one order. (Without an epilogue the result is the accumulator.)"""
    seen: dict[str, tuple[str, bytes]] = {}
    operands.fill(operands.case.seed)
    for candidate in offer.candidates:
        if candidate.order is None:
            continue
        operands.poison(0)
        call("run()", operands.run, kernels[candidate.name])
        bits = operands.out.read()[0].tobytes()
        name, other = seen.setdefault(candidate.order, (candidate.name, bits))
        require(bits == other, f"{name!r} and {candidate.name!r} state the order {candidate.order!r}, but bits differ")


def _run(operands: Operands, kernel: Kernel, name: str) -> float:
    """Run twice, the second time on new values in the same memory; return the worst error/bound."""
    case = operands.case
    operands.fill(case.seed)
    worst = run_once(operands, kernel, f"candidate {name!r}")
    operands.fill(case.seed + 1)
    return max(worst, run_once(operands, kernel, f"candidate {name!r}, after operands were rewritten in place"))


def _other_sizes(operands: Operands, kernel: Kernel, name: str) -> float:
    """Run a kernel that takes its sizes from the operands on other ones; return the worst error/bound."""
    case, problem = operands.case, operands.problem
    require(problem.device.type == "cpu", f"candidate {name!r} states any_size, which addresses alone do not give")

    def size(x: int, step: int) -> int:
        return x // 2 if case.seed % 2 else 2 * x + step

    batch, n = tuple(x and x + 1 for x in case.batch), size(case.n, 3)
    n += 0 if case.activation is None else n % EPILOGUES[case.activation].arity
    other = Operands(replace(case, m=size(case.m, 1), n=n, k=size(case.k, 2), batch=batch), HOST)
    forms, others = ({name: x.form for name, x in y.operands.items()} for y in (problem, other.problem))
    if other.problem.empty or forms != others:  # of one element, or one block, an operand has a simpler form
        return 0.0
    label = f"candidate {name!r}, prepared for other sizes"
    worst = _run(other, kernel, label)
    if kernel.direct is not None and other.problem.plain:
        with np.errstate(all="ignore"):
            result = call(f"{label}: direct()", kernel.direct, other.a.array, other.b.array, None)
        worst = max(worst, compare(other, np.asarray(result).reshape(other.out.shape), label))
    return worst


def _other_rows(operands: Operands, kernel: Kernel, name: str) -> float:
    """Run what a kernel gives for other numbers of rows, where the case has these at the same strides; return the worst
    error/bound.
    """
    case, problem, worst = operands.case, operands.problem, 0.0
    if kernel.with_rows is None or case.batch or problem.empty:
        return 0.0
    for m in (case.m + 1, max(1, case.m - 1), 2 * case.m + 1):
        other = Operands(replace(case, m=m), operands.memory)
        label = f"candidate {name!r}, with {m} rows"
        run = call(f"{label}: with_rows()", kernel.with_rows, m) if other.problem == problem.with_rows(m) else None
        if run is not None:
            worst = max(worst, _run(other, replace(kernel, run=run), label))
    return worst


def _repeats(backend: Backend, operands: Operands, kernel: Kernel) -> None:
    """Require bitwise equal results from call to call, from kernel to kernel, and from ``direct`` without ``out``."""
    problem = operands.problem
    again = first_kernel(backend, problem)
    results: list[bytes] = []
    for i, each in enumerate([kernel] * _ROUNDS + [again]):
        operands.poison(i)
        call("run()", operands.run, each)
        results.append(b"".join(x.read()[0].tobytes() for x in operands.written.values()))
    if kernel.direct is not None and problem.plain and operands.memory.device.type == "cpu":
        with np.errstate(all="ignore"):
            results.append(call("direct()", kernel.direct, operands.a.array, operands.b.array, None).tobytes())
    require(len(set(results)) == 1, 'reproducible="run" was accepted, but the results of equal calls differ in bits')


def _threads(operands: Operands, kernel: Kernel) -> float:
    """Call one kernel from several threads, each with its own operands; return the worst error/bound."""
    case = operands.case
    sets = [Operands(case, operands.memory) for _ in range(case.threads)]
    for i, each in enumerate(sets):
        each.fill(case.seed + 2 + i)
    barrier = Barrier(case.threads)

    def work(each: Operands) -> float:
        barrier.wait(timeout=60.0)
        worst = 0.0
        for _ in range(_ROUNDS):
            worst = max(worst, run_once(each, kernel, f"called from {case.threads} threads at once"))
            each.poison(each.seed)
        return worst

    with ThreadPoolExecutor(case.threads) as pool:
        return max(pool.map(work, sets))


def _direct(operands: Operands, direct: Callable[[Array, Array, Array | None], Array]) -> None:
    """Check ``direct`` as a complete matmul: with and without ``out``, with vectors, with ``out`` over an operand."""
    case, out = operands.case, operands.out
    a, b = operands.a.array, operands.b.array
    shape = (*case.batch, case.m, case.n)

    def multiply(label: str, x: Array, y: Array, into: Array | None, shape: tuple[int, ...]) -> Array:
        with np.errstate(all="ignore"):
            result = np.asarray(call(label, direct, x, y, into))
        returned = f"{result.dtype} of shape {result.shape}"
        require(
            result.shape == shape and result.dtype == out.dtype, f"{label} returned {returned}, not {out.dtype} {shape}"
        )
        compare(operands, result.reshape(out.shape), label)
        return result

    result = multiply("direct(a, b, None)", a, b, None, shape)
    shared = any(np.shares_memory(result, x) for x in (a, b, out.array))
    require(not shared, "direct(a, b, None) returned memory that is not new")
    multiply("direct(a, b, out)", a, b, out.array, shape)
    verify(operands, "direct(a, b, out)")
    if not case.batch:
        if case.m == 1:
            multiply("direct(vector, b, None)", a[0], b, None, shape[1:])
        if case.n == 1:
            multiply("direct(a, vector, None)", a, b[:, 0], None, shape[:1])
        if case.m == case.n == case.k and operands.a.dtype == out.dtype:
            own = a.copy()
            multiply("direct(a, b, a)", own, b, own, shape)
            compare(operands, own, "direct(a, b, a), the array a itself")


def _direct_epilogue(operands: Operands, direct: DirectEpilogue) -> float:
    """Check the results of ``direct_epilogue`` without and with ``out``; return the worst error/bound."""
    case, out, worst = operands.case, operands.out, 0.0
    if any(OPERANDS[name].written for name in operands.others):
        return worst
    a, b, arguments = operands.a.array, operands.b.array, operands.options
    for into in (out.array,) if case.c == "out" else (None, out.array):
        label = f"direct_epilogue(..., out={'None' if into is None else 'out'})"
        with np.errstate(all="ignore"):
            result = call(label, direct, a, b, into, arguments)
        as_described = (result.shape, result.dtype) == ((*case.batch, case.m, case.out_columns), out.dtype)
        require(as_described, f"{label} returned {result.dtype} of shape {result.shape}")
        worst = max(worst, compare(operands, result, label) if into is None else verify(operands, label))
    return worst
