"""Benchmarks: backends side by side on one product, against a baseline of the same run.

Each case draws random operands, checks every contender's result once, and then times all of them in
interleaved rounds (:mod:`gemmhub.timing`) on operands that rotate past the cache. Medians and their ratios to
the baseline are what to read; absolute times of different runs do not compare. Operands are NumPy arrays, so
backends for the CPU take part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter
from typing import Any

import numpy as np

import gemmhub
from gemmhub.dtypes import DType, as_dtype, info
from gemmhub.errors import BackendError, GemmhubError, NoBackendError
from gemmhub.options import Options
from gemmhub.problem import GemmProblem
from gemmhub.timing import interleave, rotation
from gemmhub.verify import spot_check

Array = Any

NUMPY_MATMUL = "numpy.matmul"
"""The name of the contender that is no backend: NumPy's own function, called directly."""

_LONGEST = 1.0
"""Seconds a call that numpy.matmul may take where its scalar loops run; beyond, it gets fewer rows."""
_PROBE_ROWS = 4
_BLAS = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True)
class Measurement:
    """One contender in one case. Times are seconds a call; None where it was not timed (see ``remark``)."""

    name: str
    kernel: str
    verdict: str
    """ "right", "wrong" (then it is not timed), or "" where it did not run."""
    median: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    samples: tuple[float, ...] = ()
    gflops: float | None = None
    """1e9 floating-point (or integer) operations a second, from the median."""
    ratio: float | None = None
    """The baseline's median over this one's: above 1 is faster than the baseline."""
    remark: str = ""


@dataclass(frozen=True)
class Case:
    """All contenders on one product, fastest first."""

    problem: str
    m: int
    n: int
    k: int
    dtype: str
    out_dtype: str
    flops: float
    operand_sets: int
    """Copies of the operands that calls rotate through."""
    baseline: str
    rows: tuple[Measurement, ...]

    @property
    def timed(self) -> tuple[Measurement, ...]:
        return tuple(row for row in self.rows if row.median is not None)


@dataclass(frozen=True)
class _Contender:
    name: str
    kernel: str
    out_dtype: DType
    call: Callable[[Array, Array, Array], object]
    """Of operands and a result array of ``out_dtype``."""
    scale: float = 1.0
    """The whole product over the part of it that is measured."""
    remark: str = ""


def random_operand(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Fresh operands: standard normal numbers; integers over the whole range of their type."""
    kind = info(dtype).kind
    if kind in ("int", "uint"):
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype=dtype.type, endpoint=True)
    if kind == "bool":
        return rng.integers(0, 2, shape).astype(dtype)
    if kind == "complex":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    wide: Any = np.float64 if dtype.itemsize == 8 else np.float32
    return rng.standard_normal(shape, dtype=wide).astype(dtype, copy=False)


def run_case(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "float32",
    out_dtype: str | None = None,
    precision: str | None = None,
    backends: Sequence[str] = (),
    baseline: str = NUMPY_MATMUL,
    rounds: int = 7,
    seed: int | None = None,
    progress: Callable[[], None] | None = None,
) -> Case:
    """Time ``backends`` (all that can, if none is named) and ``baseline`` on one random product.

    ``baseline`` is the name of a backend or :data:`NUMPY_MATMUL`. A backend that refuses, fails or is wrong
    appears with a remark and without times. ``progress`` is called after each round. Raises InputError for
    unknown backends, DTypeError for dtypes that do not multiply, AllocationError for want of memory.
    """
    rng = np.random.default_rng(seed)
    element = as_dtype(dtype, "dtype")
    a, b = random_operand(rng, (m, k), element), random_operand(rng, (k, n), element)
    options: Options = {}
    if out_dtype is not None:
        options["out_dtype"] = out_dtype
    if precision is not None:
        options["precision"] = precision
    decision = gemmhub.explain(a, b, **options)
    problem = decision.problem
    names = list(dict.fromkeys(backends)) or [v.backend for v in decision.verdicts if v.status in ("chosen", "able")]
    names += [baseline] if baseline not in names else []

    contenders: list[_Contender] = []
    rows: list[Measurement] = []
    for name in names:
        found = _numpy_matmul(a, b, problem) if name == NUMPY_MATMUL else _backend(name, a, b, problem, options)
        if isinstance(found, Measurement):
            rows.append(found)
        else:
            contenders.append(found)
    sets = _operand_sets(a, b, problem)
    outs = {c.out_dtype: np.empty((m, n), c.out_dtype) for c in contenders}
    calls = [_rotating(c.call, sets, outs[c.out_dtype]) for c in contenders]
    timings = interleave(calls, rounds=rounds, progress=progress)
    medians = {c.name: t.median * c.scale for c, t in zip(contenders, timings)}
    for c, t in zip(contenders, timings):
        median = medians[c.name]
        rows.append(
            Measurement(
                name=c.name,
                kernel=c.kernel,
                verdict="right",
                median=median,
                minimum=t.minimum * c.scale,
                maximum=t.maximum * c.scale,
                samples=tuple(sample * c.scale for sample in t.samples),
                gflops=problem.flops / median / 1e9,
                ratio=medians[baseline] / median if baseline in medians else None,
                remark=c.remark,
            )
        )
    rows.sort(key=lambda row: (row.median is None, row.median or 0.0))
    return Case(
        problem=str(problem),
        m=m,
        n=n,
        k=k,
        dtype=element.name,
        out_dtype=problem.out.dtype.name,
        flops=problem.flops,
        operand_sets=len(sets),
        baseline=baseline,
        rows=tuple(rows),
    )


def _backend(name: str, a: Array, b: Array, problem: GemmProblem, options: Options) -> _Contender | Measurement:
    """One backend, its first result checked; or why it does not compete."""
    forced: Options = {**options, "backend": name}
    try:
        plan = gemmhub.plan(a, b, **forced)
        result = plan(a, b)
    except NoBackendError as error:
        verdict = error.decision[name] if error.decision is not None else None
        parts = (verdict.reason, verdict.remedy) if verdict is not None else (str(error),)
        return Measurement(name, "", "", remark="; ".join(part for part in parts if part))
    except BackendError as error:
        return Measurement(name, "", "", remark=str(error))
    check = spot_check(a, b, result, precision=problem.precision)
    if not check.ok:
        return Measurement(name, plan.kernel.description, "wrong", remark=check.reason)

    def call(left: Array, right: Array, out: Array) -> object:
        return plan(left, right, out)

    return _Contender(name, plan.kernel.description, result.dtype, call)


def _numpy_matmul(a: Array, b: Array, problem: GemmProblem) -> _Contender | Measurement:
    """numpy.matmul with ``out=``; on fewer rows where its scalar loops would take too long.

    It makes the result dtype of its own rules (float32 of bfloat16, say), except that integers are
    accumulated in gemmhub's result dtype: int8 would wrap.
    """
    kinds = {info(x).kind for x in (problem.a.dtype, problem.out.dtype)}
    try:
        own = np.matmul(a[:1, :1], b[:1, :1]).dtype
        result = problem.out.dtype if kinds <= {"int", "uint"} else own
        extra: dict[str, Any] = {"dtype": result, "casting": "unsafe"} if result != own else {}
        rows = len(a)
        if own.name not in _BLAS and rows > _PROBE_ROWS:
            start = perf_counter()
            np.matmul(a[:_PROBE_ROWS], b, **extra)
            call_time = (perf_counter() - start) / _PROBE_ROWS * rows
            rows = max(_PROBE_ROWS, min(rows, int(rows * _LONGEST / call_time)))
        check = spot_check(a[:rows], b, np.matmul(a[:rows], b, **extra))
    except (TypeError, GemmhubError) as error:
        return Measurement(NUMPY_MATMUL, "", "", remark=str(error))
    if not check.ok:
        return Measurement(NUMPY_MATMUL, NUMPY_MATMUL, "wrong", remark=check.reason)

    def call(left: Array, right: Array, out: Array) -> object:
        return np.matmul(left[:rows], right, out=out[:rows], **extra)

    remarks = [f"{result.name} result"] if result != problem.out.dtype else []
    remarks += [f"{rows} of {len(a)} rows measured, scaled"] if rows < len(a) else []
    return _Contender(NUMPY_MATMUL, NUMPY_MATMUL, result, call, len(a) / rows, ", ".join(remarks))


def _operand_sets(a: Array, b: Array, problem: GemmProblem) -> list[tuple[Array, Array]]:
    """Copies that together exceed the cache, so that no call finds its operands there."""
    return [(a, b), *((a.copy(), b.copy()) for _ in range(rotation(problem.nbytes) - 1))]


def _rotating(
    call: Callable[[Array, Array, Array], object], sets: Sequence[tuple[Array, Array]], out: Array
) -> Callable[[], object]:
    turn = cycle(sets)

    def rotating() -> object:
        left, right = next(turn)
        return call(left, right, out)

    return rotating
