"""The tests of an audit: one function for each kind of trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import numpy as np

from gemmhub._audit.implementation import Implementation, Refused, Run
from gemmhub._audit.judge import Wrong, compare, judge
from gemmhub._audit.trials import Trial
from gemmhub.testing.case import Case
from gemmhub.testing.operands import Operands

Array = Any

_THREADS = 4
_REPEATS = 4


def check(implementation: Implementation, trial: Trial) -> float:
    """Run a trial; return the largest error as a fraction of its bound.

    :class:`Wrong` where the implementation is not as claimed, :class:`Refused` where it raised an exception.
    """
    return _CHECKS[trial.kind](implementation, trial.case)


def prepared(implementation: Implementation, case: Case) -> Operands:
    """The operands of a case, with its values."""
    operands = Operands(case, implementation.memory)
    operands.fill(case.seed)
    return operands


def multiply(run: Run) -> Array | None:
    """The result of a call; :class:`Refused` where it raises."""
    try:
        with np.errstate(all="ignore"):
            return run.call()
    except (Wrong, Refused, MemoryError):
        raise
    except Exception as error:  # of any library
        first = (str(error).strip() or "no message").splitlines()[0]
        raise Refused(f"{type(error).__name__}: {first:.120}") from error


def runs(implementation: Implementation, operands: Operands) -> Iterator[Run]:
    """Yield the calls of an implementation for these operands; :class:`Refused` where there are none."""
    found = False
    for run in implementation.runs(operands):
        found = True
        yield run
    if not found:
        raise Refused("no code for this product")


def result_of(operands: Operands, result: Array | None) -> Array:
    """A copy of the result, whether a call returned or wrote it."""
    return operands.out.read()[0].copy() if result is None else result.copy()


def _product(implementation: Implementation, case: Case) -> float:
    operands = prepared(implementation, case)
    worst = 0.0
    for run in runs(implementation, operands):
        operands.poison(case.seed)
        worst = max(worst, judge(operands, multiply(run), run.label))
    return worst


def _nan_in_c(implementation: Implementation, case: Case) -> float:
    operands = prepared(implementation, case)
    placed = operands.others["c"]
    placed.fill(np.full(placed.shape, np.nan).astype(placed.dtype), None)
    return max(judge(operands, multiply(run), run.label) for run in runs(implementation, operands))


def _alias(implementation: Implementation, case: Case) -> float:
    """The result over a: a product of square matrices whose ``out`` is ``a``."""
    case = replace(case, out=case.a, seed=case.seed | 1)  # an odd seed: the call writes into out
    operands = prepared(implementation, case)
    want = operands.expected()
    before = operands.b.image.copy()
    operands.out.array = operands.a.array
    for run in runs(implementation, operands):
        multiply(run)
        if not np.array_equal(operands.b.read()[1], before):
            raise Wrong("input", "a call with out=a changed b")
        return compare(operands, operands.a.read()[0], "with out=a: ", want)
    return 0.0


def _threads(implementation: Implementation, case: Case) -> float:
    sets = [prepared(implementation, replace(case, seed=case.seed + 2 * i)) for i in range(_THREADS)]
    alone = [[result_of(x, multiply(run)) for run in runs(implementation, x)] for x in sets]
    ready = Barrier(_THREADS)

    def work(number: int) -> float:
        operands, worst = sets[number], 0.0
        calls = list(runs(implementation, operands))
        ready.wait(timeout=60.0)
        for _ in range(_REPEATS):
            for run, expected in zip(calls, alone[number]):
                operands.poison(case.seed)
                result = multiply(run)
                worst = max(worst, judge(operands, result, f"{run.label or 'called'} from {_THREADS} threads at once"))
                if _differ(result_of(operands, result), expected):
                    raise Wrong("bits", f"{run.label or 'the call'} gives other bits beside calls of other threads")
        return worst

    with ThreadPoolExecutor(_THREADS) as pool:
        return max(pool.map(work, range(_THREADS)))


def _repeat(implementation: Implementation, case: Case) -> float:
    operands = prepared(implementation, case)
    for run in runs(implementation, operands):
        first = result_of(operands, multiply(run))
        for _ in range(_REPEATS):
            operands.poison(case.seed)
            if _differ(result_of(operands, multiply(run)), first):
                raise Wrong("bits", f"{run.label or 'the call'} gives other bits when it is repeated")
    return 0.0


def _rows(implementation: Implementation, case: Case) -> float:
    """The rows of a product, alone and in parts, against the same rows of the whole, by the same call."""
    whole = prepared(implementation, case)
    expected = {run.label: result_of(whole, multiply(run)) for run in runs(implementation, whole)}
    parts = {(0, 1), (case.m - 1, case.m), (0, case.m // 2), (case.m // 3, case.m)}
    for low, high in sorted(part for part in parts if 0 < part[1] - part[0] < case.m):
        part = Operands(replace(case, m=high - low), implementation.memory)
        part.fill(case.seed)
        part.a.fill(whole.a.values[low:high], None)
        part.b.fill(whole.b.values, None)
        for run in runs(implementation, part):
            got = result_of(part, multiply(run))
            if run.label in expected and _differ(got, expected[run.label][low:high]):
                raise Wrong("bits", f"{run.label or 'the call'}: rows {low} to {high - 1} have other bits alone")
    return 0.0


def _differ(x: Array, y: Array) -> bool:
    return bool(np.ascontiguousarray(x).tobytes() != np.ascontiguousarray(y).tobytes())


_CHECKS: dict[str, Callable[[Implementation, Case], float]] = {
    "product": _product, "nan in c": _nan_in_c, "alias": _alias, "threads": _threads, "repeat": _repeat, "rows": _rows,
}  # fmt: skip
